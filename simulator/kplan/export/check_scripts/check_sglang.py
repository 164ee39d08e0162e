"""Judge SGLang arguments with SGLang's own code, without weights or a GPU (runs in its environment).

Reads one JSON object from stdin: {"cases": [{"argv": [...], "folder": cwd}, ...], "stand_ins": {model name:
folder with a config.json}}; ``argv`` is what follows ``python -m sglang.launch_server``. One JSON object a
line, in that order: {"stage", "error", ...} or {"stage": "ok", ...}. Three gates, each needed: the argument
parser ("parser"), the cross-flag rules ("config"), and the check that a server start makes ("start"). The
folder is where an adaptive JSON lies; the device is given as cuda, for without one SGLang refuses to look
further. A stand-in is taken for a model that is neither a folder nor in the local cache.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torchvision_operators

_OPERATORS = torchvision_operators.define()

from huggingface_hub import try_to_load_from_cache  # noqa: E402 - after the operators
from sglang.srt.arg_groups.overrides import resolving_view  # noqa: E402 - after the operators
from sglang.srt.arg_groups.validation_hook import check_server_args  # noqa: E402 - after the operators
from sglang.srt.server_args import prepare_server_args  # noqa: E402 - after the operators
from sglang.srt.speculative.adaptive_spec_params import AdaptiveSpeculativeParams  # noqa: E402 - after the operators

GRAPH_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]
"""Decode batch sizes with a captured CUDA graph; a batch is padded to one before its K is chosen."""

SHOWN = (
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "max_running_requests",
    "tp_size",
    "context_length",
    "disable_radix_cache",
)
MODELS = {
    "model_path": "--model-path",
    "speculative_draft_model_path": "--speculative-draft-model-path",
}


def judge(argv: list[str], stand_ins: dict[str, str]) -> dict[str, Any]:
    """The verdict on one argv; with adaptive steps also ``steps_by_batch``, the first K of batches 1..256."""
    said = io.StringIO()
    stage = "parser"
    stood_in: list[str] = []
    try:
        with contextlib.redirect_stderr(said):
            device = [] if "--device" in argv else ["--device", "cuda"]
            arguments = prepare_server_args([*argv, *device])
            replaced = {
                flag: model
                for field, flag in MODELS.items()
                if _replaced(model := getattr(arguments, field), stand_ins)
            }
            stood_in = sorted(set(replaced.values()))
            folders = [word for flag, model in replaced.items() for word in (flag, stand_ins[model])]
            if folders:
                arguments = prepare_server_args([*argv, *device, *folders])
            stage = "config"
            arguments.resolve_once()
            stage = "start"
            check_server_args(arguments)
            resolved = resolving_view(arguments)
            verdict: dict[str, Any] = {"stage": "ok", "error": "", "stood_in": stood_in}
            verdict |= {name: getattr(resolved, name) for name in SHOWN}
            if resolved.speculative_adaptive:
                ladder = AdaptiveSpeculativeParams(
                    resolved.speculative_num_steps, resolved.speculative_adaptive_config
                )
                ladder.set_cuda_graph_bs(GRAPH_SIZES)
                verdict["steps_by_batch"] = [ladder.get_steps_for_batch(size) for size in range(1, 257)]
    except SystemExit:
        return {"stage": stage, "error": said.getvalue().strip().splitlines()[-1], "stood_in": stood_in}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
        line = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        return {"stage": stage, "error": line, "stood_in": stood_in}
    return verdict


def _replaced(model: str | None, stand_ins: dict[str, str]) -> bool:
    if model is None or model not in stand_ins or Path(model).is_dir():
        return False
    return not isinstance(try_to_load_from_cache(model, "config.json"), str)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    verdicts = sys.stdout
    for case in asked["cases"]:
        os.chdir(case["folder"])
        with contextlib.redirect_stdout(sys.stderr):  # the engine's own chatter
            verdict = judge(case["argv"], asked["stand_ins"])
        verdicts.write(json.dumps(verdict) + os.linesep)
        verdicts.flush()
