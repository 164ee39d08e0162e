"""Plans to verify, and servers that are kplan's own simulation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kplan.config.plan import Answer, BatchRange, Plan, Question, Roofline
from kplan.engine import Traces
from kplan.engine.state import STEPS
from kplan.live import Window
from kplan.live.bench_serve import Traffic
from kplan.live.judge import TOLERANCES, Figure, Measurements, judge, measurements
from kplan.live.judge_accept import chances_of, reshaped
from kplan.live.judge_cause import Attribution, attribute
from kplan.live.judge_predict import Forecast, Predicted
from kplan.live.metrics import read_metrics
from kplan.live.workload import F64, Demand, Files, Planned, acceptance_of, demand, planned
from kplan.provenance import versions
from kplan.registry import parse_policy
from kplan.simulate import Drawn, on_calibration, run_fleet

NOWHERE = Files(Path("/nonexistent"))
OTHER_DRAW = 1000
"""Number of the draw that a simulated server accepts by: none that a prediction uses."""


def plan(policy: str = "fixed:4", **asked: Any) -> Plan:
    """A plan for Llama-3.1-8B on an H100 at concurrency 8, or as ``asked``."""
    table = None
    k: int | None = 0 if policy == "off" else None
    name, _, rest = policy.partition(":")
    if name == "fixed":
        k = int(rest)
    elif name == "table":
        table = tuple(_entry(part) for part in rest.split(","))
    question: dict[str, Any] = {
        "qps": None,
        "concurrency": 8,
        "model": "llama-3.1-8b",
        "hardware": "h100-sxm",
        "tp": 1,
        "proposer": "eagle3",
        "workload": "sharegpt",
        "traces": None,
        "traces_hash": None,
        "prompt_tokens": 200,
        "output_tokens": 150,
        "gpu_memory_utilization": 0.9,
        "engine": "vllm",
        "slo_tpot_ms": None,
        "slo_ttft_ms": None,
        "replicas": 1,
        "max_k": max([k or 0, *(entry.k for entry in table or ())]),
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "requests": 1,
        "replications": 1,
        "seed": 0,
    }
    return Plan(
        question=Question(**(question | asked)),
        answer=Answer(
            policy=policy, k=k, table=table, replicas=1, saturated=False, words="", why=(), max_qps=None
        ),
        policies=(),
        k_curve=(),
        roofline=Roofline(
            peak_tflops=1.0, bandwidth_tb_s=1.0, efficiency_flops=1.0, efficiency_bandwidth=1.0
        ),
        assumptions=(),
        scenario_hash="0" * 16,
        versions=versions(),
    )


def _entry(part: str) -> BatchRange:
    batches, _, k = part.partition("=")
    first, _, last = batches.partition("-")
    return BatchRange(start=int(first), end=int(last) if last else None, k=int(k))


def ready(policy: str = "fixed:4", **asked: Any) -> Planned:
    """The plan with its names resolved."""
    return planned(plan(policy, **asked), NOWHERE)


@dataclass(frozen=True)
class Truth:
    """How a simulated server differs from the plan.

    Attributes:
        shift: added to the log-odds of every draft.
        slower: factor on the time of every step.
        policy: that it runs instead of the plan's.
        front_s: that requests wait before the engine has them.
    """

    shift: float = 0.0
    slower: float = 1.0
    policy: str | None = None
    front_s: float = 0.0


def serve(plan: Planned, sent: Demand, truth: Truth = Truth()) -> tuple[Window, Traffic, F64]:
    """Counters, requests and step times of a server that is the simulation, on acceptance that no prediction
    drew."""
    trace = acceptance_of(plan, sent, OTHER_DRAW)
    k = max(plan.largest_k, 1)
    if truth.policy is not None:
        k = int(truth.policy.partition(":")[2])
    if truth.shift:
        trace = reshaped(trace, chances_of(trace, k).shifted(truth.shift), OTHER_DRAW)
    setup = plan.setup
    if truth.slower != 1.0:
        setup = on_calibration(setup, plan.calibration.slower(truth.slower))
    drafted = np.zeros(0, np.uint8) if trace.drafted is None else trace.drafted
    drawn = Drawn(
        prompt_len=sent.prompt_len,
        output_len=sent.output_len,
        trace_at=trace.offsets[:-1],
        unit_arrival_s=np.zeros(len(sent)) if sent.arrival_s is None else sent.arrival_s,
        traces=Traces(trace.acc, drafted),
        trace=trace,
        recorded_k=trace.recorded_k,
        proposers=(setup.scenario.proposer,),
    )
    spec = plan.spec if truth.policy is None else parse_policy(truth.policy)
    log: list[Any] = []
    fleet, _ = run_fleet(
        setup,
        spec,
        drawn,
        qps=None if sent.arrival_s is None else 1.0,
        record=lambda _, steps: log.append(steps.copy()),
        whole=True,
    )
    rows, machine = fleet.requests, fleet.replicas[0].machine
    traffic = Traffic(
        start_s=rows["arrival_s"] - rows["arrival_s"].min(),
        ttft_s=rows["first_token_s"] - rows["arrival_s"] + truth.front_s,
        decode_s=rows["finish_s"] - rows["first_token_s"],
        prompt_len=sent.prompt_len,
        output_len=sent.output_len,
        chunks=rows["steps"].astype(np.int64),
        duration_s=float(rows["finish_s"].max() - rows["arrival_s"].min()),
        source="simulation",
    )
    drafts, drafted_tokens = (
        int(machine.k_steps[1:].sum()),
        int(np.arange(len(machine.k_steps)) @ machine.k_steps),
    )
    at = chances_of(trace, k).accepted_at * drafts
    counts = {
        "spec_decode_num_drafts_total": drafts,
        "spec_decode_num_draft_tokens_total": drafted_tokens,
        "spec_decode_num_accepted_tokens_total": float(at.sum()),
        "inter_token_latency_seconds_count": int(rows["steps"].sum()),
        "inter_token_latency_seconds_sum": float(traffic.decode_s.sum()),
        "time_to_first_token_seconds_count": len(sent),
        "request_queue_time_seconds_count": len(sent),
        "request_queue_time_seconds_sum": 0.0,
        "request_prefill_time_seconds_count": len(sent),
        "request_prefill_time_seconds_sum": float((rows["first_token_s"] - rows["arrival_s"]).sum()),
        "generation_tokens_total": int(sent.output_len.sum()),
        "iteration_tokens_total_count": int(machine.counters[STEPS]),
        "num_preemptions_total": int(rows["preempted"].sum()),
        "e2e_request_latency_seconds_count": len(sent),
    }
    lines = [f"vllm:{name} {value}" for name, value in counts.items()]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {value}'
        for i, value in enumerate(at)
    ]
    after = read_metrics("\n".join(lines) + "\n", "vllm")
    nothing = read_metrics("vllm:time_to_first_token_seconds_count 0\n", "vllm")
    steps = np.concatenate(log)
    step_s = steps["verify_s"] + steps["draft_s"] + steps["sampling_s"] + steps["overhead_s"]
    return Window(nothing, after), traffic, step_s[steps["decodes"] > 0]


@dataclass(frozen=True)
class Held:
    """A plan held against such a server."""

    figures: dict[str, Figure]
    attribution: Attribution
    measured: Measurements
    predicted: Predicted


def hold(
    plan: Planned,
    truth: Truth = Truth(),
    requests: int = 400,
    *,
    served_by: Planned | None = None,
    step_log: bool = False,
) -> Held:
    """Predicted, measured and judged at the default tolerances.

    Args:
        served_by: the server's own flags; None: the plan's.
    """
    sent = demand(plan, requests, None)
    window, traffic, step_s = serve(served_by or plan, sent, truth)
    forecast = Forecast(plan, sent, traffic)
    predicted = forecast.run()
    measured = measurements(window, traffic, sent.concurrency, predicted.ttft_s, step_s if step_log else None)
    found = attribute(forecast, predicted, measured, TOLERANCES, k_changes=plan.k_changes, spec=plan.spec)
    figures = {one.name: one for one in judge(predicted.figures, measured.figures, TOLERANCES)}
    return Held(figures, found, measured, predicted)
