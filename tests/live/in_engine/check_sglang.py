"""Judge SGLang config files with SGLang's own code, without weights or a GPU (runs in its environment).

    python check_sglang.py FILE...

One JSON object a line: {"file", "stage", "error"} or {"file", "stage": "ok", ...}. Three gates, each needed:
the argument parser, the cross-flag rules, and the final check. A file is read in its own folder, where its
adaptive JSON lies; the device is given as cuda, for without one SGLang refuses to look further.
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


def judge(path: Path) -> dict[str, Any]:
    """The verdict on one file; with adaptive steps also ``steps_by_batch``, the first K of batches 1..256."""
    said = io.StringIO()
    stage = "parser"
    try:
        with contextlib.redirect_stderr(said), contextlib.chdir(path.parent):
            arguments = prepare_server_args(["--config", path.name, "--device", "cuda"])
            stage = "resolve"
            arguments.resolve_once()
            stage = "check"
            check_server_args(arguments)
            resolved = resolving_view(arguments)
            verdict: dict[str, Any] = {"stage": "ok"} | {name: getattr(resolved, name) for name in SHOWN}
            if resolved.speculative_adaptive:
                ladder = AdaptiveSpeculativeParams(
                    resolved.speculative_num_steps, resolved.speculative_adaptive_config
                )
                ladder.set_cuda_graph_bs(GRAPH_SIZES)
                verdict["steps_by_batch"] = [ladder.get_steps_for_batch(size) for size in range(1, 257)]
    except SystemExit:
        return {"stage": stage, "error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
        return {"stage": stage, "error": f"{type(error).__name__}: {error}"}
    return verdict


if __name__ == "__main__":
    verdicts = sys.stdout
    for name in sys.argv[1:]:
        with contextlib.redirect_stdout(sys.stderr):  # the engine's own chatter
            verdict = judge(Path(name).resolve())
        verdicts.write(json.dumps({"file": name, **verdict}) + os.linesep)
