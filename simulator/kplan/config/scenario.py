"""The scenario: one question to the simulator, from flags or a YAML file, every default filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from kplan.config.record import Record
from kplan.config.shipped import trace_path
from kplan.errors import InputError
from kplan.files import read_text
from kplan.formats import SCENARIO
from kplan.plainyaml import MOST_BYTES, load_yaml

MIN_QPS, MAX_QPS = 1e-6, 100_000.0
MIN_BURSTINESS, MAX_BURSTINESS = 1e-3, 1e6
MAX_CONCURRENCY = 100_000
MAX_THINK_S = 86_400.0
MAX_REQUESTS = 10_000_000
MAX_SEATS, MAX_TOKENS = 65_536, 1_048_576
MAX_DRAFTS = 254
MAX_SPAN_S = 1e10
"""Seconds that the arrivals may span, 317 years: beyond them a clock of 64 bits counts in steps of more than
2 microseconds, and the rounding of every step shows in the TPOT."""


class Scenario(Record):
    """A load on a model on some hardware, and how long to simulate it.

    Exactly one of ``qps`` (open loop), ``concurrency`` (closed loop) and ``replay`` (a request log, at its
    own pace or, with ``qps`` too, stretched to that rate) is given.
    """

    qps: float | None = Field(None, ge=MIN_QPS, le=MAX_QPS, allow_inf_nan=False)
    concurrency: int | None = Field(None, ge=1, le=MAX_CONCURRENCY)
    replay: Path | None = Field(None, description="request log that arrivals and lengths are taken from")
    columns: dict[str, str] = Field(
        default_factory=dict, description="what the log's columns are: kplan's name -> the log's"
    )
    arrivals: Literal["poisson", "constant", "ramp"] = Field("poisson", description="of the open loop")
    burstiness: float = Field(
        1.0,
        ge=MIN_BURSTINESS,
        le=MAX_BURSTINESS,
        allow_inf_nan=False,
        description="shape of gamma gaps, as vllm bench serve: 1 is Poisson, less is burstier",
    )
    ramp_to_qps: float | None = Field(
        None, ge=MIN_QPS, le=MAX_QPS, allow_inf_nan=False, description="rate that a ramp from qps ends at"
    )
    think_s: float = Field(
        0.0, ge=0, le=MAX_THINK_S, allow_inf_nan=False, description="mean pause of a client between requests"
    )
    model: str = "llama-3.1-8b"
    hardware: str = "h100-sxm"
    calibration: str | None = Field(
        None, description="a file of kplan calibrate; None: the GPU's, or borrowed"
    )
    tp: int = Field(1, ge=1, le=64, description="tensor-parallel GPUs per replica")
    dp: int = Field(1, ge=1, le=64, description="data-parallel ranks per replica, each on tp GPUs of its own")
    quantization: Literal["bf16", "fp8", "int4"] | None = Field(
        None, description="of the weights; None: the profile's"
    )
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = Field("auto", description="auto: the profile's")
    proposer: str = Field("eagle3", description="several joined by +: the policy chooses among them")
    switch_us: float = Field(
        0.0, ge=0, le=1e6, allow_inf_nan=False, description="host time per request that changes its proposer"
    )
    drafter: str | None = Field(None, description="a drafter YAML, a draft model, or a head's weights")
    workload: str = "sharegpt"
    traces: Path | None = Field(None, description="recorded traces instead of the workload's fitted model")
    dataset: str | None = Field(None, description="which data set of traces that hold several; None: all")
    engine: str = "vllm"
    async_scheduling: bool | None = Field(None, description="None: as the engine does by default")
    enforce_eager: bool = Field(False, description="no captured graphs: the host launches every kernel")
    policy: str = "fixed:3"
    max_k: int = Field(7, ge=0, le=MAX_DRAFTS, description="largest K a policy may choose")
    requests: int | None = Field(
        None, ge=1, le=MAX_REQUESTS, description="per replication; None: by the load"
    )
    replications: int = Field(1, ge=1, le=1000)
    seed: int = Field(0, ge=0, lt=2**63)
    replicas: int | None = Field(None, ge=1, le=1024, description="None: as many as needed (1 in simulate)")
    router: Literal["round-robin", "least-outstanding"] = Field(
        "round-robin", description="over the replicas"
    )
    slo_tpot_ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    slo_ttft_ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    prompt_tokens: int | None = Field(None, ge=1, le=10_000_000, description="constant prompt length")
    output_tokens: int | None = Field(None, ge=1, le=10_000_000, description="constant output length")
    max_num_seqs: int | None = Field(None, ge=1, le=MAX_SEATS, description="None: the engine's default")
    max_num_batched_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    max_model_len: int | None = Field(
        None, ge=1, le=10_000_000, description="longest prompt and output together; None: the model's own"
    )
    prefix_caching: bool = Field(True, description="whether prompts reuse the KV cache of a shared beginning")
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_load(self) -> Self:
        loads = [self.qps if self.replay is None else None, self.concurrency, self.replay]
        if sum(load is not None for load in loads) != 1:
            raise ValueError(
                "give exactly one of --qps (open loop), --concurrency (closed loop) and --replay (a request "
                "log, with which --qps may go)"
            )
        if self.concurrency is not None and self.requests is not None and self.requests < self.concurrency:
            raise ValueError(
                f"requests must be at least the concurrency: {self.requests} requests cannot keep "
                f"{self.concurrency} clients busy; leave requests out"
            )
        servers = (self.replicas or 1) * self.dp
        if self.concurrency is not None and self.concurrency < servers:
            what = "replicas" if self.dp == 1 else "replicas x dp"
            raise ValueError(
                f"{what} must be at most the concurrency: {self.concurrency} clients leave some of "
                f"{servers} {'replicas' if self.dp == 1 else 'ranks'} without one"
            )
        return self

    @model_validator(mode="after")
    def _ends_in_time(self) -> Self:
        if self.requests is None or self.replay is not None:
            return self
        if self.qps is not None:
            span_s = self.requests / ((self.qps + (self.ramp_to_qps or self.qps)) / 2)
        else:
            assert self.concurrency is not None
            span_s = self.requests / self.concurrency * self.think_s
        if span_s > MAX_SPAN_S:
            raise ValueError(
                f"requests must be fewer: {self.requests} of them span {span_s:.3g} s, and the clock of a "
                f"run of more than {MAX_SPAN_S:g} s loses its microseconds; leave requests out"
            )
        return self

    @field_validator("traces")
    @classmethod
    def _traces_that_ship(cls, given: Path | None) -> Path | None:
        return None if given is None else trace_path(given)

    @model_validator(mode="after")
    def _dataset_of_traces(self) -> Self:
        if self.dataset is not None and self.traces is None:
            raise ValueError("--dataset is one of recorded traces: give --traces FILE, or leave it out")
        return self

    @model_validator(mode="after")
    def _switches_among_several(self) -> Self:
        if self.switch_us > 0 and "+" not in self.proposer:
            raise ValueError(
                "--switch-us is a cost of several proposers: join them (ngram+eagle3), or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _arrivals_fit_the_load(self) -> Self:
        given = {key for key in self.model_fields_set if getattr(self, key) is not None}
        if self.replay is not None:
            taken = [key for key in _OF_THE_LOG if key in given]
            if taken:
                raise ValueError(
                    f"{_flag(taken[0])} does not go with --replay: the log has its own; leave it out"
                )
        elif self.columns:
            raise ValueError("--columns names those of a request log: give --replay FILE, or leave it out")
        if self.concurrency is not None:
            idle = [key for key in ("arrivals", "burstiness", "ramp_to_qps") if key in given]
            if idle:
                raise ValueError(f"{_flag(idle[0])} is of an open loop: give --qps instead of --concurrency")
        elif self.think_s > 0:
            raise ValueError("--think-s is a pause of the clients of a closed loop: give --concurrency")
        if (self.arrivals == "ramp") != (self.ramp_to_qps is not None):
            raise ValueError(
                "--arrivals ramp and --ramp-to-qps need each other: a ramp goes from --qps to it"
            )
        if self.burstiness != 1.0 and self.arrivals != "poisson":
            raise ValueError(
                f"--burstiness shapes the gaps of --arrivals poisson, not of {self.arrivals}: leave one out"
            )
        return self


def check_one_proposer(proposer: str) -> None:
    """Refuse a ``proposer`` that joins several by ``+`` where an engine of today is to run the answer.

    Raises:
        InputError: there are several.
    """
    if "+" in proposer:
        raise InputError(
            "--proposer", proposer, "no released engine switches proposers per step",
            "compare policies over several with kplan simulate",
        )  # fmt: skip


_OF_THE_LOG = ("arrivals", "burstiness", "ramp_to_qps", "traces", "prompt_tokens", "output_tokens")
"""Keys that a request log speaks for."""

_GIVES_WAY = {
    "qps": ("concurrency", "think_s"),
    "concurrency": ("qps", "replay", "columns", "arrivals", "burstiness", "ramp_to_qps"),
    "replay": ("concurrency", "think_s", "arrivals", "burstiness", "ramp_to_qps"),
}
"""Flag that names a kind of load -> keys of the file that it takes the place of."""

SWITCHES = ("async_scheduling", "enforce_eager", "prefix_caching")
"""Keys that are true or false."""


def make_scenario(values: dict[str, Any], origin: str = "scenario") -> Scenario:
    """Validate ``values``; the first fault becomes one line that names the key, the value and the bound.

    Args:
        values: by field of :class:`Scenario`.
        origin: what an error says they are from.

    Raises:
        InputError: unknown key, wrong type or out of range.
    """
    for key, value in values.items():
        if isinstance(value, bool) and key not in SWITCHES:  # pydantic would take true for 1
            raise InputError(f"{origin}: {key}", value, "is no such value", "give a number or a name")
    try:
        return Scenario(**values)
    except ValidationError as err:
        raise _first_fault(err, origin) from None


def load_scenario(path: Path, overrides: dict[str, Any], defaults: dict[str, Any]) -> Scenario:
    """Read a scenario YAML; ``overrides`` (flags) win over the file, the file over ``defaults``.

    Raises:
        InputError: no such file, not a mapping, or a fault as in :func:`make_scenario`.
    """
    text = read_text("scenario file", path, MOST_BYTES)
    try:
        values = load_yaml(text)
    except yaml.YAMLError as err:
        raise InputError("scenario file", str(path), f"is not YAML: {err}", "mend that line") from None
    if not isinstance(values, dict):
        raise InputError(
            "scenario file", str(path), "must be a mapping of keys to values", "for example `qps: 64`"
        )
    values = SCENARIO.unmarked_of(values, path)
    merged = {str(key).replace("-", "_"): value for key, value in values.items()}
    if merged.get("replicas") == "auto":
        merged["replicas"] = None
    if merged.get("policy") is False:  # YAML 1.1 reads the word off as False
        merged["policy"] = "off"
    for key in ("traces", "replay"):
        if file := merged.get(key):
            merged[key] = path.parent / str(file)
            if key == "traces" and _is_name(str(file)) and not merged[key].exists():
                merged[key] = Path(str(file))  # of a trace that comes with kplan
    for key in ("model", "hardware", "calibration", "drafter", "workload"):
        if isinstance(merged.get(key), str):
            merged[key] = _beside(path, merged[key])
    for flag, others in _GIVES_WAY.items():
        if overrides.get(flag) is not None:
            merged = {key: value for key, value in merged.items() if key not in others}
    return make_scenario(defaults | merged | overrides, str(path))


def _is_name(text: str) -> bool:
    return "/" not in text and not Path(text).suffix


def _beside(path: Path, name: str) -> str:
    """The file or model folder of that name beside the scenario, else the name itself."""
    there = path.parent / name
    is_path = there.suffix in (".yaml", ".yml", ".json") or "/" in name
    return str(there) if is_path and (there.is_file() or (there / "config.json").is_file()) else name


def _first_fault(err: ValidationError, origin: str) -> InputError:
    fault = err.errors(include_url=False)[0]
    key, *inside = [str(part) for part in fault["loc"]] or [""]
    if fault["type"] == "extra_forbidden":
        known = ", ".join(Scenario.model_fields)
        return InputError(f"{origin}: key", key, "is not known", f"known keys: {known}")
    message = fault["msg"].removeprefix("Value error, ")
    if not key:
        return InputError(origin, "a load that does not hold together", message)
    where = " ".join([_flag(key), *inside])
    return InputError(f"{origin}: {where}", fault["input"], message[0].lower() + message[1:])


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
