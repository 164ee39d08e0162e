"""The answer on the second source of GEMM times, under other acceptance, and at longer contexts."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kplan.simulate.setup as resolving
from kplan.config.plan import Plan
from kplan.config.scenario import make_scenario
from kplan.latency import EngineTraits, LatencyModel
from kplan.profiles import Calibration, load_calibration, load_drafter, load_hardware, load_model
from kplan.search import recommend
from kplan.search.candidates import WalkCurve, best_k, longer_context, rates
from kplan.workload import load_workload
from kplan.workload.build import write_workload
from kplan.workload.figures import FigureKind, Figures, from_figures

LOAD = {"concurrency": 128, "proposer": "eagle3", "workload": "gsm8k", "requests": 400, "replications": 1}


def _with_alternate_flops(calibration: Calibration, share: float) -> Calibration:
    """The second source reaches ``share`` of the flops that the first one reaches."""
    flops = calibration.gemm.flops_eff
    slower = replace(flops, value=flops.value * share)
    alternate = replace(calibration.gemm, flops_eff=slower)
    return replace(calibration, gemm_alternate=alternate, host_alternate=None)


def _recommend_on(calibration: Calibration, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(resolving, "load_calibration", lambda _: calibration)
    return recommend(make_scenario(dict(LOAD), "test"))


def test_the_same_times_twice_leave_the_answer_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own = load_calibration("h100-sxm")
    plan = _recommend_on(replace(own, gemm_alternate=own.gemm, host_alternate=None), monkeypatch)
    band = plan.answer.band
    assert band is not None
    mine = next(one for one in plan.policies if one.name == plan.answer.policy)
    assert mine.tpot_ms is not None
    assert band.tpot_ms == pytest.approx(mine.tpot_ms.mean, rel=1e-12)
    assert (band.policy, band.flips, band.loss) == (plan.answer.policy, False, 0.0)
    assert any("the choice holds" in reason for reason in plan.answer.why)


def test_a_slow_tensor_core_flips_the_choice_to_less_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _recommend_on(_with_alternate_flops(load_calibration("h100-sxm"), 0.1), monkeypatch)
    band = plan.answer.band
    assert plan.answer.k is not None
    assert plan.answer.k > 0
    assert band is not None
    assert band.flips
    assert band.policy == "off"
    assert band.loss is not None
    assert band.loss > 0.05
    assert band.speedup_vs_off is not None
    assert band.speedup_vs_off < 1
    assert any("flips to no speculation" in reason for reason in plan.answer.why)


def test_one_source_of_times_has_no_band(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _recommend_on(replace(load_calibration("h100-sxm"), gemm_alternate=None), monkeypatch)
    assert plan.answer.band is None


def test_acceptance_known_by_figures_widens_the_answer(tmp_path: Path) -> None:
    """Rounded to whole tokens, a mean of 2 may be anything from 1.5 to 2.5: no K holds for both."""
    figures = Figures(FigureKind.MEAN, (2.0,), 3, rounding=0.5)
    workload = load_workload("gsm8k")
    model = from_figures(figures, "eagle3", workload, like="gsm8k-eagle3")
    written = write_workload(replace(workload, name="mine"), {"eagle3": model}, tmp_path)
    load = {**LOAD, "concurrency": 32, "workload": str(written[-1]), "replications": 2, "max_k": 3}
    answer = recommend(make_scenario(load, "test")).answer
    tpot = {band.source: band.tpot_ms for band in answer.acceptance}
    assert list(tpot) == [
        "as in instructcoder-eagle3", "as in sharegpt-eagle3", "figures -0.5", "figures +0.5",
    ]  # fmt: skip
    low, high = tpot["figures +0.5"], tpot["figures -0.5"]
    assert low is not None
    assert high is not None
    assert low < high
    told = re.search(r"TPOT is [0-9.]+ ms \(95% ([0-9.]+) to ([0-9.]+)\)", answer.words)
    assert told is not None
    assert float(told[1]) < low
    assert high < float(told[2])
    assert any("Only figures of the acceptance are known" in reason for reason in answer.why)


def test_recorded_acceptance_leaves_nothing_open() -> None:
    assert recommend(make_scenario({**LOAD, "max_k": 1}, "test")).answer.acceptance == ()


def test_a_longer_context_raises_the_best_k_of_a_large_batch() -> None:
    """At batch 128 short contexts are compute bound; long ones read so much KV that drafts are cheap."""
    model = load_model("llama-3.1-8b")
    latency = LatencyModel(
        load_hardware("h100-sxm"),
        model,
        load_drafter("eagle3", model),
        load_calibration("h100-sxm"),
        traits=EngineTraits(tuple(range(8, 513, 8))),
    )
    alpha = 0.6
    tokens = (1 - alpha ** np.arange(1, 9)) / (1 - alpha)
    curve = WalkCurve(tokens, np.arange(8.0))
    found = longer_context(latency, curve, 128, 500.0, 10_000_000)
    assert found is not None
    now, context, then = found
    assert then > now
    assert best_k(rates(latency, curve, 128, context / 2)[-1]) == now
    assert best_k(rates(latency, curve, 128, context)[-1]) == then
    assert longer_context(latency, curve, 128, 500.0, 128 * context - 1) is None  # it does not fit the cache
