"""The plan's scenario simulated again on exactly the requests that were sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kplan.acceptance import ProposerTrace
from kplan.engine import Fleet, Traces
from kplan.engine.state import STEPS
from kplan.engine.state import Steps as StepRows
from kplan.live.bench_serve import Traffic
from kplan.live.judge_accept import Chances, chances_of, reshaped
from kplan.live.workload import F64, Demand, Planned, acceptance_of
from kplan.registry import PolicySpec
from kplan.simulate import Drawn, Setup, on_calibration, run_fleet

REPLICATIONS = 5
"""Draws of acceptance that a prediction is the mean of."""


@dataclass(frozen=True)
class Under:
    """What of the plan is replaced by what was measured; nothing by default.

    Attributes:
        acceptance: the server's chances of each draft.
        slower: factor on every step's time.
        spec: the K that the server was seen to draft.
    """

    acceptance: Chances | None = None
    slower: float = 1.0
    spec: PolicySpec | None = None


@dataclass(frozen=True)
class Predicted:
    """Figures by name (see kplan.live.judge.KINDS), means over the draws.

    Attributes:
        chances: what is accepted, over the steps simulated at the largest K.
        duration_s: from the first request to the last token.
        ttft_s: (n,) of each request, in the order of the demand.
    """

    figures: Mapping[str, float]
    chances: Chances
    duration_s: float
    ttft_s: F64


class Forecast:
    """Predicts one load under the plan's assumptions, and under others.

    Args:
        plan: what was planned.
        sent: the requests.
        traffic: what they were in the end (prompts counted by the server, moments of arrival); None before
            they are sent.
        replications: draws of acceptance.
    """

    def __init__(
        self, plan: Planned, sent: Demand, traffic: Traffic | None = None, replications: int = REPLICATIONS
    ) -> None:
        self._plan = plan
        arrival = sent.arrival_s
        prompt = sent.prompt_len
        if traffic is not None:
            prompt = traffic.prompt_len
            if arrival is not None and traffic.start_s is not None:
                arrival = traffic.start_s
        order = np.arange(len(sent)) if arrival is None else np.argsort(arrival, kind="stable")
        self._order = order
        self._sent = replace(
            sent,
            prompt_len=prompt[order],
            output_len=sent.output_len[order],
            arrival_s=None if arrival is None else arrival[order],
            rows=None if sent.rows is None else sent.rows[order],
        )
        self._k = max(plan.largest_k, 1)
        self._traces = [acceptance_of(plan, self._sent, number) for number in range(replications)]

    @property
    def most_k(self) -> int:
        """Drafts up to which steps are priced."""
        return self._plan.setup.scenario.max_k

    def run(self, under: Under = Under()) -> Predicted:
        """Simulate the load, once for every draw of acceptance."""
        setup = self._plan.setup
        spec = under.spec or self._plan.spec
        if under.slower != 1.0:
            setup = on_calibration(setup, self._plan.calibration.slower(under.slower))
        found, chances, seconds, ttft_s = [], [], [], np.zeros(len(self._sent))
        for number, trace in enumerate(self._traces):
            if under.acceptance is not None:
                trace = reshaped(trace, under.acceptance, number)
            fleet, log = self._once(setup, spec, trace)
            figures, duration_s = _figures(fleet, log)
            found.append(figures)
            ttft_s[self._order] += fleet.requests["first_token_s"] - fleet.requests["arrival_s"]
            chances.append(chances_of(trace, self._k))
            seconds.append(duration_s)
        means = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        return Predicted(means, Chances.mean(chances), float(np.mean(seconds)), ttft_s / len(self._traces))

    def _once(self, setup: Setup, spec: PolicySpec, trace: ProposerTrace) -> tuple[Fleet, StepRows]:
        log: list[StepRows] = []
        fleet, _ = run_fleet(
            setup,
            spec,
            self._drawn(trace),
            qps=None if self._sent.arrival_s is None else 1.0,
            record=lambda _, steps: log.append(steps.copy()),
            whole=True,
        )
        return fleet, np.concatenate(log)

    def _drawn(self, trace: ProposerTrace) -> Drawn:
        sent, n = self._sent, len(self._sent)
        drafted = np.zeros(0, np.uint8) if trace.drafted is None else trace.drafted
        return Drawn(
            prompt_len=sent.prompt_len,
            output_len=sent.output_len,
            trace_at=trace.offsets[:-1],
            unit_arrival_s=np.zeros(n) if sent.arrival_s is None else sent.arrival_s,
            # the compiled engine takes arrays that can be written
            traces=Traces(
                np.require(trace.acc, requirements=["C", "W"]), np.require(drafted, requirements=["C", "W"])
            ),
            trace=trace,
            recorded_k=trace.recorded_k,
            proposers=(self._plan.setup.scenario.proposer,),
        )


def _figures(fleet: Fleet, log: StepRows) -> tuple[dict[str, float], float]:
    """As kplan.live.judge.measurements has them, and the seconds of the run."""
    rows = np.concatenate([one.requests[one.admitted] for one in fleet.replicas if len(one.admitted)])
    machines = [one.machine for one in fleet.replicas]
    decode_s = rows["finish_s"] - rows["first_token_s"]
    output, steps = rows["output_len"], int(rows["steps"].sum())
    later = output > 1
    k_steps = np.sum([one.k_steps for one in machines], axis=0)
    drafts = int(k_steps[1:].sum())
    duration_s = float(rows["finish_s"].max() - rows["arrival_s"].min())
    seconds = log["verify_s"] + log["draft_s"] + log["sampling_s"] + log["overhead_s"]
    figures = {
        "ttft_ms": 1e3 * float((rows["first_token_s"] - rows["arrival_s"]).mean()),
        "output_tok_s": float(output.sum()) / duration_s,
        "mean_batch": (steps + len(rows)) / int(sum(one.counters[STEPS] for one in machines)),
        "preemptions": float(rows["preempted"].sum()) / len(rows),
    }
    if steps:
        figures |= {
            "acceptance_length": float((output - 1).sum()) / steps,
            "step_ms": 1e3 * float(decode_s.sum()) / steps,
            "step_median_ms": 1e3 * float(np.median(seconds[log["decodes"] > 0])),
            "itl_ms": 1e3 * float(decode_s.sum()) / steps,
            "tpot_ms": 1e3 * float((decode_s[later] / (output[later] - 1)).mean()),
            "draft_share": drafts / steps,
        }
    if drafts:
        figures["drafted"] = float(np.arange(len(k_steps)) @ k_steps) / drafts
    return figures, duration_s
