"""The same start without a config file: one shell command with every option of it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any


def vllm_command(content: Mapping[str, Any]) -> str:
    """``vllm serve MODEL --...`` for the content of a vLLM YAML."""
    words = ["vllm", "serve", str(content["model"])]
    for key, value in content.items():
        if value is False:
            words.append(f"--no-{key}")
        elif key != "model":
            words += _option(key, value)
    return shlex.join(words)


def sglang_command(content: Mapping[str, Any]) -> str:
    """``python -m sglang.launch_server --...`` for the content of an SGLang YAML."""
    words = ["python", "-m", "sglang.launch_server"]
    for key, value in content.items():
        words += _option(key, value)
    return shlex.join(words)


def _option(key: str, value: Any) -> list[str]:
    if value is True:
        return [f"--{key}"]
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)
    return [f"--{key}", text]
