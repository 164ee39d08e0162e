"""Options that several commands take together, each declared once, as groups in the order of their help.

A command names a group as the default of one parameter, and :func:`grouped` puts its options in that place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeAlias, cast

from kplan.cli import options as o

Group: TypeAlias = Mapping[str, Any]
"""In a signature: option -> its annotation; in a call: option -> what is given, None where nothing is."""

LOAD: Group = {
    "qps": o.Qps,
    "concurrency": o.Concurrency,
    "replay": o.Replay,
    "columns": o.Columns,
    "arrivals": o.Arrivals,
    "burstiness": o.Burstiness,
    "ramp_to_qps": o.RampTo,
    "think_s": o.ThinkS,
}
SERVED: Group = {
    "model": o.Model,
    "hardware": o.Hardware,
    "calibration": o.Calibration,
    "tp": o.Tp,
    "dp": o.Dp,
    "quantization": o.Quantization,
    "kv_cache_dtype": o.KvCacheDtype,
    "proposer": o.Proposers,
    "switch_us": o.SwitchUs,
    "drafter": o.Drafter,
    "workload": o.Workload,
    "traces": o.Traces,
    "dataset": o.Dataset,
    "engine": o.Engine,
    "async_scheduling": o.AsyncScheduling,
    "enforce_eager": o.EnforceEager,
}
SLOS: Group = {"slo_tpot_ms": o.SloTpot, "slo_ttft_ms": o.SloTtft}
RUNS: Group = {
    "replicas": o.Replicas,
    "router": o.Router,
    "max_k": o.MaxK,
    "requests": o.Requests,
    "replications": o.Replications,
    "seed": o.Seed,
    "prompt_tokens": o.PromptTokens,
    "output_tokens": o.OutputTokens,
}
LIMITS: Group = {
    "max_num_seqs": o.MaxNumSeqs,
    "max_num_batched_tokens": o.MaxTokens,
    "max_model_len": o.MaxModelLen,
    "prefix_caching": o.PrefixCaching,
    "gpu_memory_utilization": o.GpuMemory,
}


def of(*groups: Group, without: str = "", **instead: Any) -> Group:
    """Groups one after the other.

    Args:
        without: names of options that are left out.
        instead: option -> another annotation of its own, in the same place.
    """
    joined = {name: each for group in groups for name, each in group.items()} | instead
    for name in without.split():
        del joined[name]
    return joined


def grouped(command: Callable[..., int]) -> Callable[..., int]:
    """``command`` with the options of its groups, each None by default, where it has a group as a default."""
    taken = inspect.signature(command, eval_str=True)
    groups = {name: one.default for name, one in taken.parameters.items() if isinstance(one.default, Mapping)}
    shown: list[inspect.Parameter] = []
    for name, one in taken.parameters.items():
        shown += (
            [
                one.replace(name=option, annotation=annotation, default=None)
                for option, annotation in groups[name].items()
            ]
            if name in groups
            else [one]
        )

    @wraps(command)
    def with_groups(**given: Any) -> int:
        for name, group in groups.items():
            given[name] = {option: given.pop(option) for option in group}
        return command(**given)

    cast(Any, with_groups).__signature__ = taken.replace(parameters=shown)
    return with_groups
