"""plan.json: the question, the answer and the evidence; ``recommend`` writes it, ``export`` reads it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kplan.config.evidence import Evidence
from kplan.config.record import Record

SCHEMA_VERSION: Literal[1] = 1


class Stat(Record):
    """A distribution over requests, pooled over replications; ``ci95`` is that of the mean."""

    mean: float
    p50: float
    p99: float
    ci95: tuple[float, float] | None = Field(description="over replications; None with one")


class TimeSplit(Record):
    """Mean seconds of one engine step by what they were spent on."""

    verify_s: float
    draft_s: float
    sampling_s: float
    overhead_s: float


class PolicyResult(Record):
    """What one policy did with the load. Times in ms, rates per second over all replicas."""

    name: str = Field(description="policy text, for example fixed:3 or table:1-64=3,65-=1")
    exportable: bool
    why_not: str = Field("", description="why no engine can run it, when not exportable")
    tpot_ms: Stat | None = Field(description="None when no request emitted a second token, or saturated")
    ttft_ms: Stat | None
    output_tok_s: float
    output_tok_s_ci95: tuple[float, float] | None = Field(description="None with one replication")
    goodput_qps: float = Field(description="requests/s that met every SLO given (all finished ones if none)")
    goodput_ci95: tuple[float, float] | None
    speedup_vs_off: float | None = Field(description="mean TPOT of off / mean TPOT of this policy")
    speedup_ci95: tuple[float, float] | None = Field(description="paired over replications; None with one")
    mean_batch: float = Field(description="requests per step, prefills included, weighted by steps")
    mean_k: float = Field(description="drafts verified per decoding request and step")
    acceptance_length: float = Field(description="tokens per decoding request and step, bonus included")
    saturated: bool
    max_qps: float | None = Field(description="largest rate all replicas sustain; None if not searched")
    max_qps_ci95: tuple[float, float] | None = Field(None, description="over seeds; None with one")
    max_qps_slo: float | None = Field(
        None, description="largest rate at which the SLOs are met; None without one, or if not searched"
    )
    steady: bool = Field(
        True, description="MSER-5 finds no warm-up in the window that would show in its means"
    )
    split: TimeSplit
    mean_context: float = Field(description="mean context of a decoding request, tokens")
    preemptions: int
    k_share: dict[str, float] = Field(description="share of decode steps at each K")


class MixResult(Record):
    """Who drafted where a policy chooses among several proposers, over the measured window."""

    proposer_share: dict[str, float] = Field(
        description="share of decoding request-steps that verified drafts of each; the others verified none"
    )
    switches_per_1000: float = Field(
        description="changes of a request's proposer per 1,000 decoding request-steps"
    )


class Question(Record):
    """What was asked, with every default filled in."""

    qps: float | None = Field(gt=0)
    concurrency: int | None = Field(ge=1)
    replay: str | None = Field(None, description="request log that arrivals and lengths were taken from")
    replay_hash: str | None = Field(None, description="of that file's bytes")
    columns: dict[str, str] = Field({}, description="what the log's columns are: kplan's name -> the log's")
    arrivals: Literal["poisson", "constant", "ramp"] = "poisson"
    burstiness: float = Field(1.0, gt=0, description="shape of gamma gaps; 1 is Poisson")
    ramp_to_qps: float | None = Field(None, gt=0, description="rate that a ramp from qps ends at")
    think_s: float = Field(0.0, ge=0, description="mean pause of a client between its requests")
    model: str
    hardware: str
    calibration: str | None = Field(None, description="None: the hardware's own, or borrowed")
    tp: int = Field(ge=1)
    dp: int = Field(1, ge=1, description="data-parallel ranks per replica")
    quantization: Literal["bf16", "fp8", "int4"] | None = Field(None, description="None: the model's own")
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = Field("auto", description="auto: the model's own")
    proposer: str
    drafter: str | None = Field(
        None, description="what the drafter was named by; None: by the proposer alone"
    )
    workload: str
    traces: str | None = Field(description="recorded traces used instead of the workload's fitted model")
    traces_hash: str | None = Field(description="of that file's bytes")
    dataset: str | None = Field(None, description="which data set of that file; None: all that it holds")
    prompt_tokens: int | None = Field(ge=1, description="constant length, None: the workload's")
    output_tokens: int | None = Field(ge=1)
    engine: str
    async_scheduling: bool | None = Field(None, description="None: as the engine does by default")
    enforce_eager: bool = Field(False, description="without captured graphs")
    gpu_memory_utilization: float = Field(gt=0, le=1)
    slo_tpot_ms: float | None = Field(gt=0)
    slo_ttft_ms: float | None = Field(gt=0)
    replicas: int | None = Field(ge=1, description="None: as many as needed")
    router: Literal["round-robin", "least-outstanding"] = "round-robin"
    max_k: int = Field(ge=0, le=254)
    max_num_seqs: int = Field(ge=1)
    max_num_batched_tokens: int = Field(ge=1)
    max_model_len: int | None = Field(None, ge=1, description="None: the model's own")
    prefix_caching: bool = True
    requests: int = Field(ge=1, description="requests simulated per replication")
    replications: int = Field(ge=1)
    seed: int = Field(ge=0)


class BatchRange(Record):
    """Batch sizes start..end (both included) run with K drafts; end None means up to max_num_seqs.

    The exporter checks the values against the engine's rules, with the reason.
    """

    start: int
    end: int | None
    k: int


class Band(Record):
    """The same question answered on other inputs, as plausible: a second source of GEMM times, or acceptance
    that shows the same figures."""

    source: str = Field(
        description="where those GEMM times come from, or what is otherwise in the acceptance"
    )
    tpot_ms: float | None = Field(description="of the recommended policy there; None when it saturates")
    speedup_vs_off: float | None
    policy: str | None = Field(description="what would be recommended there; None: nothing serves the load")
    flips: bool = Field(description="that is another policy")
    loss: float | None = Field(description="TPOT of the recommended policy there over that one's, less 1")


class Answer(Record):
    """What to run and why."""

    policy: str
    k: int | None = Field(description="the K of a fixed answer (0: no speculation); None for a table")
    table: tuple[BatchRange, ...] | None
    replicas: int = Field(ge=1)
    saturated: bool
    feasible: bool = Field(
        True, description="False when no policy the engine can run serves the load as asked"
    )
    words: str
    why: tuple[str, ...] = Field(
        description="one reason a line: bound, batches visited, gap to the oracle ..."
    )
    max_qps: float | None = Field(description="largest rate that the recommended replicas sustain")
    kv_tokens: int | None = Field(
        None, description="KV cache of one rank as predicted, tokens; None in older plans"
    )
    band: Band | None = Field(None, description="None when the calibration has one source of GEMM times")
    acceptance: tuple[Band, ...] = Field(
        (), description="under other acceptance that shows the same figures; empty where it was recorded"
    )


class Assumption(Record):
    """A figure the answer rests on, and how it is known."""

    name: str
    value: str
    kind: str = Field(description="measured, fitted, published or assumed")
    source: str


class KCurvePoint(Record):
    """One fixed K at the load's own batch: where the step sits on the roofline."""

    k: int
    batch: float
    context: float
    step_ms: float
    tokens_per_s: float = Field(description="expected output tokens/s of the batch at this K")
    flops_per_byte: float = Field(
        description="arithmetic intensity of the target's weights GEMMs and attention"
    )
    tflops: float = Field(description="achieved TFLOP/s of the target pass")
    bound: str = Field(description="memory or compute")


class Roofline(Record):
    """Ceilings that the points are drawn under."""

    peak_tflops: float
    bandwidth_tb_s: float
    efficiency_flops: float
    efficiency_bandwidth: float


class Plan(Record):
    """The file ``plan.json``."""

    schema_version: Literal[1] = SCHEMA_VERSION
    question: Question
    answer: Answer
    policies: tuple[PolicyResult, ...]
    k_curve: tuple[KCurvePoint, ...]
    roofline: Roofline
    assumptions: tuple[Assumption, ...]
    scenario_hash: str
    versions: dict[str, str]
    evidence: Evidence | None = Field(None, description="for the pictures; None in older plans")
