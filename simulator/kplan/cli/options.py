"""Options that several commands share, and how they become a scenario."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

if TYPE_CHECKING:
    from kplan.config.scenario import Scenario

Qps: TypeAlias = Annotated[
    float | None, typer.Option("--qps", help="requests per second (open loop, Poisson)")
]
Concurrency: TypeAlias = Annotated[
    int | None,
    typer.Option("--concurrency", help="clients that each keep one request in flight (closed loop)"),
]
Model: TypeAlias = Annotated[
    str | None, typer.Option("--model", help="model profile, YAML, or config.json [llama-3.1-8b]")
]
Hardware: TypeAlias = Annotated[
    str | None, typer.Option("--hardware", help="hardware profile or YAML [h100-sxm]")
]
Calibration: TypeAlias = Annotated[
    str | None, typer.Option("--calibration", help="file of kplan calibrate [the GPU's own, or borrowed]")
]
Quantization: TypeAlias = Annotated[
    str | None, typer.Option("--quantization", help="weights: bf16, fp8 or int4 [as the model says]")
]
KvCacheDtype: TypeAlias = Annotated[
    str | None, typer.Option("--kv-cache-dtype", help="KV cache: auto, bf16 or fp8 [auto: as the model says]")
]
Tp: TypeAlias = Annotated[int | None, typer.Option("--tp", help="tensor-parallel GPUs per replica [1]")]
Proposer: TypeAlias = Annotated[
    str | None, typer.Option("--proposer", help="eagle, eagle3, mtp, ngram, draft-model ... [eagle3]")
]
Drafter: TypeAlias = Annotated[
    str | None,
    typer.Option("--drafter", help="drafter YAML, draft model (as --model), or ORG/NAME of a head's weights"),
]
Workload: TypeAlias = Annotated[str | None, typer.Option("--workload", help="workload profile [sharegpt]")]
Traces: TypeAlias = Annotated[
    Path | None, typer.Option("--traces", help="recorded acceptance traces instead of the workload's model")
]
Engine: TypeAlias = Annotated[str | None, typer.Option("--engine", help="vllm or sglang [vllm]")]
AsyncScheduling: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--async-scheduling/--no-async-scheduling",
        help="whether the host prepares a step while the GPU runs the one before [the engine's default]",
    ),
]
EnforceEager: TypeAlias = Annotated[
    bool | None,
    typer.Option("--enforce-eager", help="no captured graphs: the host launches every kernel"),
]
Requests: TypeAlias = Annotated[
    int | None, typer.Option("--requests", help="requests per replication [by the load]")
]
Seed: TypeAlias = Annotated[int | None, typer.Option("--seed", help="random seed [0]")]
Replicas: TypeAlias = Annotated[
    str | None, typer.Option("--replicas", help="number of replicas, or auto [auto; 1 in simulate]")
]
Replications: TypeAlias = Annotated[
    int | None, typer.Option("--replications", help="independent seeds behind every interval")
]
MaxK: TypeAlias = Annotated[int | None, typer.Option("--max-k", help="largest K considered [7]")]
SloTpot: TypeAlias = Annotated[
    float | None, typer.Option("--slo-tpot-ms", help="TPOT that 90% of the requests must meet")
]
SloTtft: TypeAlias = Annotated[
    float | None, typer.Option("--slo-ttft-ms", help="TTFT that 90% of the requests must meet")
]
PromptTokens: TypeAlias = Annotated[
    int | None, typer.Option("--prompt-tokens", help="constant prompt length")
]
OutputTokens: TypeAlias = Annotated[
    int | None, typer.Option("--output-tokens", help="constant output length")
]
MaxNumSeqs: TypeAlias = Annotated[
    int | None, typer.Option("--max-num-seqs", help="seats of a replica [the engine's default]")
]
MaxTokens: TypeAlias = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", help="token budget of a step [the engine's default]")
]
GpuMemory: TypeAlias = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", help="share of the GPU memory used [0.9]")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="one JSON object on stdout and nothing else")]


def scenario_of(file: Path | None, flags: dict[str, Any], defaults: dict[str, Any]) -> Scenario:
    """The scenario from a file, flags (which win) and the command's own defaults (which lose).

    Args:
        file: scenario YAML, None for flags alone.
        flags: the command's arguments by name; None is "not given", names no scenario has are left out.
        defaults: what the command sets when neither says.

    Raises:
        InputError: see kplan.config.scenario.
    """
    from kplan.config.scenario import Scenario, load_scenario, make_scenario
    from kplan.errors import InputError

    given = {key: value for key, value in flags.items() if value is not None and key in Scenario.model_fields}
    if "replicas" in given:
        text = str(given["replicas"])
        if text == "auto":
            given["replicas"] = None
        elif text.isascii() and text.removeprefix("-").isdigit():
            given["replicas"] = int(text)
        else:
            raise InputError("--replicas", text, "must be a whole number >= 1 or auto")
    if file is None:
        return make_scenario(defaults | given, "kplan")
    if not file.exists():
        raise InputError("scenario file", str(file), "does not exist", "check the path")
    return load_scenario(file, given, defaults)
