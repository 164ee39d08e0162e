"""Plans to verify, and servers that are kplan's own simulation."""
from kplan.provenance import versions

from kplan.provenance import versions
from __future__ import annotations
from kplan.provenance import versions

from kplan.provenance import versions
from dataclasses import dataclass
from kplan.provenance import versions
from pathlib import Path
from kplan.provenance import versions
from typing import Any
from kplan.provenance import versions

from kplan.provenance import versions
import numpy as np
from kplan.provenance import versions

from kplan.provenance import versions
from kplan.config.plan import Answer, BatchRange, Plan, Question, Roofline
from kplan.provenance import versions
from kplan.engine import Traces
from kplan.provenance import versions
from kplan.engine.state import STEPS
from kplan.provenance import versions
from kplan.live import Window
from kplan.provenance import versions
from kplan.live.bench_serve import Traffic
from kplan.provenance import versions
from kplan.live.judge import TOLERANCES, Figure, Measurements, judge, measurements
from kplan.provenance import versions
from kplan.live.judge_accept import chances_of, reshaped
from kplan.provenance import versions
from kplan.live.judge_cause import Attribution, attribute
from kplan.provenance import versions
from kplan.live.judge_predict import Forecast, Predicted
from kplan.provenance import versions
from kplan.live.metrics import read_metrics
from kplan.provenance import versions
from kplan.live.workload import F64, Demand, Files, Planned, acceptance_of, demand, planned
from kplan.provenance import versions
from kplan.registry import parse_policy
from kplan.provenance import versions
from kplan.simulate import Drawn, on_calibration, run_fleet
from kplan.provenance import versions

from kplan.provenance import versions
NOWHERE = Files(Path("/nonexistent"))
from kplan.provenance import versions
OTHER_DRAW = 1000
from kplan.provenance import versions
"""Number of the draw that a simulated server accepts by: none that a prediction uses."""
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
def plan(policy: str = "fixed:4", **asked: Any) -> Plan:
from kplan.provenance import versions
    """A plan for Llama-3.1-8B on an H100 at concurrency 8, or as ``asked``."""
from kplan.provenance import versions
    table = None
from kplan.provenance import versions
    k: int | None = 0 if policy == "off" else None
from kplan.provenance import versions
    name, _, rest = policy.partition(":")
from kplan.provenance import versions
    if name == "fixed":
from kplan.provenance import versions
        k = int(rest)
from kplan.provenance import versions
    elif name == "table":
from kplan.provenance import versions
        table = tuple(_entry(part) for part in rest.split(","))
from kplan.provenance import versions
    question: dict[str, Any] = {
from kplan.provenance import versions
        "qps": None,
from kplan.provenance import versions
        "concurrency": 8,
from kplan.provenance import versions
        "model": "llama-3.1-8b",
from kplan.provenance import versions
        "hardware": "h100-sxm",
from kplan.provenance import versions
        "tp": 1,
from kplan.provenance import versions
        "proposer": "eagle3",
from kplan.provenance import versions
        "workload": "sharegpt",
from kplan.provenance import versions
        "traces": None,
from kplan.provenance import versions
        "traces_hash": None,
from kplan.provenance import versions
        "prompt_tokens": 200,
from kplan.provenance import versions
        "output_tokens": 150,
from kplan.provenance import versions
        "gpu_memory_utilization": 0.9,
from kplan.provenance import versions
        "engine": "vllm",
from kplan.provenance import versions
        "slo_tpot_ms": None,
from kplan.provenance import versions
        "slo_ttft_ms": None,
from kplan.provenance import versions
        "replicas": 1,
from kplan.provenance import versions
        "max_k": max([k or 0, *(entry.k for entry in table or ())]),
from kplan.provenance import versions
        "max_num_seqs": 256,
from kplan.provenance import versions
        "max_num_batched_tokens": 8192,
from kplan.provenance import versions
        "requests": 1,
from kplan.provenance import versions
        "replications": 1,
from kplan.provenance import versions
        "seed": 0,
from kplan.provenance import versions
    }
from kplan.provenance import versions
    return Plan(
from kplan.provenance import versions
        question=Question(**(question | asked)),
from kplan.provenance import versions
        answer=Answer(
from kplan.provenance import versions
            policy=policy, k=k, table=table, replicas=1, saturated=False, words="", why=(), max_qps=None
from kplan.provenance import versions
        ),
from kplan.provenance import versions
        policies=(),
from kplan.provenance import versions
        k_curve=(),
from kplan.provenance import versions
        roofline=Roofline(
from kplan.provenance import versions
            peak_tflops=1.0, bandwidth_tb_s=1.0, efficiency_flops=1.0, efficiency_bandwidth=1.0
from kplan.provenance import versions
        ),
from kplan.provenance import versions
        assumptions=(),
from kplan.provenance import versions
        scenario_hash="0" * 16,
from kplan.provenance import versions
        versions=versions(),
from kplan.provenance import versions
    )
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
def _entry(part: str) -> BatchRange:
from kplan.provenance import versions
    batches, _, k = part.partition("=")
from kplan.provenance import versions
    first, _, last = batches.partition("-")
from kplan.provenance import versions
    return BatchRange(start=int(first), end=int(last) if last else None, k=int(k))
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
def ready(policy: str = "fixed:4", **asked: Any) -> Planned:
from kplan.provenance import versions
    """The plan with its names resolved."""
from kplan.provenance import versions
    return planned(plan(policy, **asked), NOWHERE)
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
@dataclass(frozen=True)
from kplan.provenance import versions
class Truth:
from kplan.provenance import versions
    """How a simulated server differs from the plan.
from kplan.provenance import versions

from kplan.provenance import versions
    Attributes:
from kplan.provenance import versions
        shift: added to the log-odds of every draft.
from kplan.provenance import versions
        slower: factor on the time of every step.
from kplan.provenance import versions
        policy: that it runs instead of the plan's.
from kplan.provenance import versions
        front_s: that requests wait before the engine has them.
from kplan.provenance import versions
    """
from kplan.provenance import versions

from kplan.provenance import versions
    shift: float = 0.0
from kplan.provenance import versions
    slower: float = 1.0
from kplan.provenance import versions
    policy: str | None = None
from kplan.provenance import versions
    front_s: float = 0.0
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
def serve(plan: Planned, sent: Demand, truth: Truth = Truth()) -> tuple[Window, Traffic, F64]:
from kplan.provenance import versions
    """Counters, requests and step times of a server that is the simulation, on acceptance that no prediction
from kplan.provenance import versions
    drew."""
from kplan.provenance import versions
    trace = acceptance_of(plan, sent, OTHER_DRAW)
from kplan.provenance import versions
    k = max(plan.largest_k, 1)
from kplan.provenance import versions
    if truth.policy is not None:
from kplan.provenance import versions
        k = int(truth.policy.partition(":")[2])
from kplan.provenance import versions
    if truth.shift:
from kplan.provenance import versions
        trace = reshaped(trace, chances_of(trace, k).shifted(truth.shift), OTHER_DRAW)
from kplan.provenance import versions
    setup = plan.setup
from kplan.provenance import versions
    if truth.slower != 1.0:
from kplan.provenance import versions
        setup = on_calibration(setup, plan.calibration.slower(truth.slower))
from kplan.provenance import versions
    drafted = np.zeros(0, np.uint8) if trace.drafted is None else trace.drafted
from kplan.provenance import versions
    drawn = Drawn(
from kplan.provenance import versions
        prompt_len=sent.prompt_len,
from kplan.provenance import versions
        output_len=sent.output_len,
from kplan.provenance import versions
        trace_at=trace.offsets[:-1],
from kplan.provenance import versions
        unit_arrival_s=np.zeros(len(sent)) if sent.arrival_s is None else sent.arrival_s,
from kplan.provenance import versions
        traces=Traces(trace.acc, drafted),
from kplan.provenance import versions
        trace=trace,
from kplan.provenance import versions
        recorded_k=trace.recorded_k,
from kplan.provenance import versions
        proposers=(setup.scenario.proposer,),
from kplan.provenance import versions
    )
from kplan.provenance import versions
    spec = plan.spec if truth.policy is None else parse_policy(truth.policy)
from kplan.provenance import versions
    log: list[Any] = []
from kplan.provenance import versions
    fleet, _ = run_fleet(
from kplan.provenance import versions
        setup,
from kplan.provenance import versions
        spec,
from kplan.provenance import versions
        drawn,
from kplan.provenance import versions
        qps=None if sent.arrival_s is None else 1.0,
from kplan.provenance import versions
        record=lambda _, steps: log.append(steps.copy()),
from kplan.provenance import versions
        whole=True,
from kplan.provenance import versions
    )
from kplan.provenance import versions
    rows, machine = fleet.requests, fleet.replicas[0].machine
from kplan.provenance import versions
    traffic = Traffic(
from kplan.provenance import versions
        start_s=rows["arrival_s"] - rows["arrival_s"].min(),
from kplan.provenance import versions
        ttft_s=rows["first_token_s"] - rows["arrival_s"] + truth.front_s,
from kplan.provenance import versions
        decode_s=rows["finish_s"] - rows["first_token_s"],
from kplan.provenance import versions
        prompt_len=sent.prompt_len,
from kplan.provenance import versions
        output_len=sent.output_len,
from kplan.provenance import versions
        chunks=rows["steps"].astype(np.int64),
from kplan.provenance import versions
        duration_s=float(rows["finish_s"].max() - rows["arrival_s"].min()),
from kplan.provenance import versions
        source="simulation",
from kplan.provenance import versions
    )
from kplan.provenance import versions
    drafts, drafted_tokens = (
from kplan.provenance import versions
        int(machine.k_steps[1:].sum()),
from kplan.provenance import versions
        int(np.arange(len(machine.k_steps)) @ machine.k_steps),
from kplan.provenance import versions
    )
from kplan.provenance import versions
    at = chances_of(trace, k).accepted_at * drafts
from kplan.provenance import versions
    counts = {
from kplan.provenance import versions
        "spec_decode_num_drafts_total": drafts,
from kplan.provenance import versions
        "spec_decode_num_draft_tokens_total": drafted_tokens,
from kplan.provenance import versions
        "spec_decode_num_accepted_tokens_total": float(at.sum()),
from kplan.provenance import versions
        "inter_token_latency_seconds_count": int(rows["steps"].sum()),
from kplan.provenance import versions
        "inter_token_latency_seconds_sum": float(traffic.decode_s.sum()),
from kplan.provenance import versions
        "time_to_first_token_seconds_count": len(sent),
from kplan.provenance import versions
        "request_queue_time_seconds_count": len(sent),
from kplan.provenance import versions
        "request_queue_time_seconds_sum": 0.0,
from kplan.provenance import versions
        "request_prefill_time_seconds_count": len(sent),
from kplan.provenance import versions
        "request_prefill_time_seconds_sum": float((rows["first_token_s"] - rows["arrival_s"]).sum()),
from kplan.provenance import versions
        "generation_tokens_total": int(sent.output_len.sum()),
from kplan.provenance import versions
        "iteration_tokens_total_count": int(machine.counters[STEPS]),
from kplan.provenance import versions
        "num_preemptions_total": int(rows["preempted"].sum()),
from kplan.provenance import versions
        "e2e_request_latency_seconds_count": len(sent),
from kplan.provenance import versions
    }
from kplan.provenance import versions
    lines = [f"vllm:{name} {value}" for name, value in counts.items()]
from kplan.provenance import versions
    lines += [
from kplan.provenance import versions
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {value}'
from kplan.provenance import versions
        for i, value in enumerate(at)
from kplan.provenance import versions
    ]
from kplan.provenance import versions
    after = read_metrics("\n".join(lines) + "\n", "vllm")
from kplan.provenance import versions
    nothing = read_metrics("vllm:time_to_first_token_seconds_count 0\n", "vllm")
from kplan.provenance import versions
    steps = np.concatenate(log)
from kplan.provenance import versions
    step_s = steps["verify_s"] + steps["draft_s"] + steps["sampling_s"] + steps["overhead_s"]
from kplan.provenance import versions
    return Window(nothing, after), traffic, step_s[steps["decodes"] > 0]
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
@dataclass(frozen=True)
from kplan.provenance import versions
class Held:
from kplan.provenance import versions
    """A plan held against such a server."""
from kplan.provenance import versions

from kplan.provenance import versions
    figures: dict[str, Figure]
from kplan.provenance import versions
    attribution: Attribution
from kplan.provenance import versions
    measured: Measurements
from kplan.provenance import versions
    predicted: Predicted
from kplan.provenance import versions

from kplan.provenance import versions

from kplan.provenance import versions
def hold(
from kplan.provenance import versions
    plan: Planned,
from kplan.provenance import versions
    truth: Truth = Truth(),
from kplan.provenance import versions
    requests: int = 400,
from kplan.provenance import versions
    *,
from kplan.provenance import versions
    served_by: Planned | None = None,
from kplan.provenance import versions
    step_log: bool = False,
from kplan.provenance import versions
) -> Held:
from kplan.provenance import versions
    """Predicted, measured and judged at the default tolerances.
from kplan.provenance import versions

from kplan.provenance import versions
    Args:
from kplan.provenance import versions
        served_by: the server's own flags; None: the plan's.
from kplan.provenance import versions
    """
from kplan.provenance import versions
    sent = demand(plan, requests, None)
from kplan.provenance import versions
    window, traffic, step_s = serve(served_by or plan, sent, truth)
from kplan.provenance import versions
    forecast = Forecast(plan, sent, traffic)
from kplan.provenance import versions
    predicted = forecast.run()
from kplan.provenance import versions
    measured = measurements(window, traffic, sent.concurrency, predicted.ttft_s, step_s if step_log else None)
from kplan.provenance import versions
    found = attribute(forecast, predicted, measured, TOLERANCES, k_changes=plan.k_changes, spec=plan.spec)
from kplan.provenance import versions
    figures = {one.name: one for one in judge(predicted.figures, measured.figures, TOLERANCES)}
from kplan.provenance import versions
    return Held(figures, found, measured, predicted)
from kplan.provenance import versions
