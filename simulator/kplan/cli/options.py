"""Options that several commands share, and how they become a scenario."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from kplan.cli import complete

if TYPE_CHECKING:
    from kplan.config.scenario import Scenario

LOADS = ("qps", "concurrency", "replay")
"""Options that name a load."""

Qps: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--qps", help="requests per second (open loop); with --replay, stretches the log to this rate"
    ),
]
Concurrency: TypeAlias = Annotated[
    int | None,
    typer.Option("--concurrency", help="clients that each keep one request in flight (closed loop)"),
]
Replay: TypeAlias = Annotated[
    Path | None,
    typer.Option("--replay", help="request log to take arrivals and lengths from (CSV, JSONL, parquet)"),
]
Columns: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--columns", help="the log's columns, where its header is not known: t_s=when,input_tokens=n"
    ),
]
Arrivals: TypeAlias = Annotated[
    str | None, typer.Option("--arrivals", help="open loop: poisson, constant or ramp [poisson]")
]
Burstiness: TypeAlias = Annotated[
    float | None,
    typer.Option("--burstiness", help="shape of gamma gaps; below 1 is burstier than Poisson [1]"),
]
RampTo: TypeAlias = Annotated[
    float | None, typer.Option("--ramp-to-qps", help="rate at which --arrivals ramp, begun at --qps, ends")
]
ThinkS: TypeAlias = Annotated[
    float | None, typer.Option("--think-s", help="mean pause of a client between requests, exponential [0]")
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        autocompletion=complete.shipped("models"),
        help="model profile, YAML, or config.json [llama-3.1-8b]",
    ),
]
Hardware: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--hardware", autocompletion=complete.shipped("hardware"), help="hardware profile or YAML [h100-sxm]"
    ),
]
Calibration: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        autocompletion=complete.shipped("calibrations"),
        help="file of kplan calibrate [the GPU's own, or borrowed]",
    ),
]
Quantization: TypeAlias = Annotated[
    str | None, typer.Option("--quantization", help="weights: bf16, fp8 or int4 [as the model says]")
]
KvCacheDtype: TypeAlias = Annotated[
    str | None, typer.Option("--kv-cache-dtype", help="KV cache: auto, bf16 or fp8 [auto: as the model says]")
]
Tp: TypeAlias = Annotated[int | None, typer.Option("--tp", help="tensor-parallel GPUs per replica [1]")]
Dp: TypeAlias = Annotated[
    int | None, typer.Option("--dp", help="data-parallel ranks per replica, each on GPUs of its own [1]")
]
Proposer: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--proposer",
        autocompletion=complete.proposers,
        help="eagle, eagle3, mtp, ngram, draft-model ... [eagle3]",
    ),
]
Proposers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--proposer",
        autocompletion=complete.proposers,
        help="eagle, eagle3, mtp, ngram, draft-model ..., or several that the policy chooses from: "
        "ngram+eagle3 [eagle3]",
    ),
]
SwitchUs: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--switch-us", help="of several proposers: host microseconds per request that changes its own [0]"
    ),
]
Drafter: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--drafter",
        autocompletion=complete.shipped("models"),
        help="drafter YAML, draft model (as --model), or ORG/NAME of a head's weights",
    ),
]
Workload: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--workload", autocompletion=complete.shipped("workloads"), help="workload profile [sharegpt]"
    ),
]
Traces: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--traces",
        autocompletion=complete.example,
        help="recorded acceptance instead of the workload's model: a file, or the name example",
    ),
]
Dataset: TypeAlias = Annotated[
    str | None, typer.Option("--dataset", help="which data set of --traces that hold several [all]")
]
DatasetOfFile: TypeAlias = Annotated[
    str | None, typer.Option("--dataset", help="which data set of a file that holds several")
]
Engine: TypeAlias = Annotated[
    str | None,
    typer.Option("--engine", autocompletion=complete.shipped("engines"), help="vllm or sglang [vllm]"),
]
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
Router: TypeAlias = Annotated[
    str | None, typer.Option("--router", help="round-robin or least-outstanding [round-robin]")
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
MaxModelLen: TypeAlias = Annotated[
    int | None, typer.Option("--max-model-len", help="longest prompt and output together [the model's own]")
]
PrefixCaching: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--prefix-caching/--no-prefix-caching", help="reuse the KV cache of prompts that begin alike [on]"
    ),
]
GpuMemory: TypeAlias = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", help="share of the GPU memory used [0.9]")
]
Workers: TypeAlias = Annotated[
    int | None, typer.Option("--workers", help="processes of this machine [one per core]")
]
Cluster: TypeAlias = Annotated[
    str | None, typer.Option("--cluster", help="Dask scheduler whose workers are used: tcp://HOST:8786")
]
ApiKeyEnv: TypeAlias = Annotated[
    str | None, typer.Option("--api-key-env", help="environment variable that holds the server's API key")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="one JSON object on stdout and nothing else")]


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable; no message says it.

    Raises:
        InputError: it is not set, or holds what no header can.
    """
    from kplan.errors import InputError

    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise InputError("--api-key-env", variable, "is not set", f"export {variable}=...")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        bound = "what it holds has a line end, a space at an end, or a letter that is not ASCII"
        raise InputError("--api-key-env", variable, bound, "export the key alone")
    return key


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
    from kplan.registry import refuse_code

    given = {key: value for key, value in flags.items() if value is not None and key in Scenario.model_fields}
    if "replicas" in given:
        text = str(given["replicas"])
        if text == "auto":
            given["replicas"] = None
        elif text.isascii() and text.removeprefix("-").isdigit():
            given["replicas"] = int(text)
        else:
            raise InputError("--replicas", text, "must be a whole number >= 1 or auto")
    if "columns" in given:
        given["columns"] = pairs(str(given["columns"]))
    if file is None:
        return make_scenario(defaults | given, "kplan")
    if not file.exists():
        raise InputError("scenario file", str(file), "does not exist", "check the path")
    scenario = load_scenario(file, given, defaults)
    if "policy" not in given:
        refuse_code(scenario.policy, str(file))
    return scenario


def pairs(text: str) -> dict[str, str]:
    """The columns of ``t_s=when,input_tokens=n_in``."""
    from kplan.errors import InputError

    columns: dict[str, str] = {}
    for pair in text.split(","):
        key, equals, column = (part.strip() for part in pair.partition("="))
        if not (key and equals and column):
            raise InputError("--columns", text, "is read as NAME=COLUMN,NAME=COLUMN", f"mend {pair!r}")
        if key in columns:
            raise InputError("--columns", text, f"{key} is given twice", "leave one out")
        columns[key] = column
    return columns


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The positive numbers of ``4,8,64``.

    Raises:
        InputError: one of them is none.
    """
    from kplan.errors import InputError

    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise InputError(option, part.strip(), "is no number", "write 4,8,64") from None
    return tuple(values)
