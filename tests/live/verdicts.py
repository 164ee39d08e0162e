"""What the real engines say of config files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.live.install import Engine
from tests.live.server import environment

IN_ENGINE = Path(__file__).parent / "in_engine"


def judge(engine: Engine, files: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """Case name -> verdict of the engine's own code on its file (see in_engine/check_*.py)."""
    command = [engine.python, IN_ENGINE / f"check_{engine.name}.py", *files.values()]
    quiet = environment() | {"VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, check=False, env=quiet, capture_output=True, text=True)
    verdicts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(verdicts) != len(files):
        raise RuntimeError(
            f"{engine.name} judged {len(verdicts)} of {len(files)} files:\n{done.stderr[-3000:]}"
        )
    return dict(zip(files, verdicts, strict=True))
