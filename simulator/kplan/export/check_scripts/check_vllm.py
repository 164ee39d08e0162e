"""Judge vLLM arguments with vLLM's own code, without weights or a GPU (runs in the engine's environment).

Reads one JSON object from stdin: {"cases": [{"argv": [...], "folder": cwd}, ...], "stand_ins": {model name:
folder with a config.json}}; ``argv`` is what follows ``vllm serve``. One JSON object a line, in that order:
{"stage", "error", ...} or {"stage": "ok", ...}. Three stages, as a server start goes through them: its
argument parser, its config objects, and the expansion of a batch table, which vLLM makes (and may refuse)
only when the engine comes up. A stand-in is taken for a model that is neither a folder nor in the local
cache.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup


def judge(argv: list[str], stand_ins: dict[str, str]) -> dict[str, Any]:
    """The verdict on one argv; ``k_by_batch[b]`` is the K that the engine would run at batch size b."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
            if getattr(flags, "model_tag", None) is not None:
                flags.model = flags.model_tag
            validate_parsed_serve_args(flags)
    except SystemExit:
        return {"stage": "parser", "error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
        return {"stage": "parser", "error": _one_line(error)}
    stood_in = _stand_in(flags, stand_ins)
    try:
        arguments = AsyncEngineArgs.from_cli_args(flags)
        config = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
        return {"stage": "config", "error": _one_line(error), "stood_in": stood_in}
    scheduler, speculative = config.scheduler_config, config.speculative_config
    verdict: dict[str, Any] = {
        "stage": "ok",
        "error": "",
        "stood_in": stood_in,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "data_parallel_size": config.parallel_config.data_parallel_size,
        "max_model_len": config.model_config.max_model_len,
        "fits_max_model_len": config.model_config.original_max_model_len == -1,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "method": None,
        "k": 0,
        "k_by_batch": None,
    }
    if speculative is None:
        return verdict
    verdict |= {"method": speculative.method, "k": speculative.num_speculative_tokens}
    table = speculative.num_speculative_tokens_per_batch_size
    if table:
        try:
            lookup = build_dynamic_sd_schedule_lookup(
                table, scheduler.max_num_seqs, speculative.num_speculative_tokens
            )
        except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
            return {"stage": "start", "error": _one_line(error), "stood_in": stood_in}
        verdict["k_by_batch"] = list(lookup)
    return verdict


def _stand_in(flags: Any, stand_ins: dict[str, str]) -> list[str]:
    """Put the folders in place of the models that are not at hand, and name those."""
    used = []
    if _replaced(flags.model, stand_ins):
        used.append(flags.model)
        flags.model = stand_ins[flags.model]
    for place, key in ((flags, "spec_model"), (flags.speculative_config, "model")):
        values = place if isinstance(place, dict) else vars(place) if place is not None else {}
        if _replaced(values.get(key), stand_ins):
            used.append(values[key])
            values[key] = stand_ins[values[key]]
    return used


def _replaced(model: str | None, stand_ins: dict[str, str]) -> bool:
    if model is None or model not in stand_ins or Path(model).is_dir():
        return False
    return not isinstance(try_to_load_from_cache(model, "config.json"), str)


def _one_line(error: Exception) -> str:
    """The error's first fault; pydantic's carry the field and a link."""
    faults = getattr(error, "errors", None)
    if callable(faults):
        first = faults(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where}: {first['msg']}" if where else str(first["msg"])
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    verdicts = sys.stdout
    for case in asked["cases"]:
        os.chdir(case["folder"])
        with contextlib.redirect_stdout(sys.stderr):  # the engine's own chatter
            verdict = judge(case["argv"], asked["stand_ins"])
        verdicts.write(json.dumps(verdict) + "\n")
        verdicts.flush()
