"""Judge vLLM config files with vLLM's own code, without weights or a GPU (runs in the engine's environment).

    python check_vllm.py FILE...

One JSON object a line: {"file", "stage", "error"} or {"file", "stage": "ok", ...}. Three stages, as a server
start goes through them: its argument parser, its config objects, and the expansion of a batch table, which
vLLM makes (and may refuse) only when the engine comes up.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.usage.usage_lib import UsageContext
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup


def judge(path: str) -> dict[str, Any]:
    """The verdict on one file; ``k_by_batch[b]`` is the K that the engine would run at batch size b."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags = make_arg_parser(FlexibleArgumentParser()).parse_args(["--config", path])
            validate_parsed_serve_args(flags)
    except SystemExit:
        return {"stage": "parser", "error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
        return {"stage": "parser", "error": f"{type(error).__name__}: {error}"}
    try:
        arguments = AsyncEngineArgs.from_cli_args(flags)
        config = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the verdict
        return {"stage": "config", "error": f"{type(error).__name__}: {error}"}
    scheduler, speculative = config.scheduler_config, config.speculative_config
    verdict: dict[str, Any] = {
        "stage": "ok",
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
            return {"stage": "start", "error": f"{type(error).__name__}: {error}"}
        verdict["k_by_batch"] = list(lookup)
    return verdict


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(json.dumps({"file": name, **judge(name)}) + "\n")
