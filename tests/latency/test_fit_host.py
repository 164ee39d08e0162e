"""The host's times from published timings, against sums by hand on a made GPU whose passes are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any, cast

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import LatencyModel, StepShape
from kplan.latency.fit_host import HostFitResult, fit_host, in_situ_error
from kplan.latency.fit_loops import request_s
from kplan.latency.fit_published import host_figures
from kplan.latency.model import StepTime
from kplan.latency.published import HostTimings, LinearRow, LoopRow, ShareRow, SweepRow
from kplan.profiles import Drafter, HostFit, SamplerFit, load_drafter, load_model
from kplan.provenance import Kind

LLAMA = load_model("llama-3.1-8b")


@dataclass(frozen=True)
class Gpu:
    """A GPU that takes 1 ms for each query token of a decode (2 for a 70B model's), 2 us a prompt token and
    0.1 us a token of context; every draft takes ``draft_s``."""

    token_s: float = 1e-3
    drafter: Drafter | None = None
    draft_s: float = 1e-4

    def step_seconds(self, shape: StepShape) -> StepTime:
        verify = np.asarray(shape.decode_tokens) * self.token_s + np.asarray(shape.decode_kv_tokens) * 1e-7
        verify = verify + np.asarray(shape.prefill_tokens) * 2e-6
        zero = np.zeros_like(verify)
        return StepTime(
            verify, zero if self.drafter is None else zero + self.draft_s * shape.draft_k, zero, zero
        )


def model_of(name: str, proposer: str | None, tp: int) -> LatencyModel:
    drafter = None if proposer is None else load_drafter(proposer, LLAMA)
    token_s = {"llama-3.1-8b": 1e-3, "llama-3-70b": 8e-3}[name] / tp
    return cast(LatencyModel, Gpu(token_s, drafter))


CONTEXT_S = 500 * 1e-7
"""What the context of a single request takes of every pass."""

SAME: dict[str, Any] = {"source": "one", "model": "llama-3.1-8b"}
LINEAR = LinearRow(
    source="linear",
    model="llama-3.1-8b",
    proposer="eagle",
    k=2,
    batches=(1, 4),
    overhead_s=8e-4,
    draft_fixed_s=1.5e-3,
    draft_token_s=1e-4,
    draft_kv_token_s=1e-9,
    lookup_share=0.1,
    verify_fixed_s=2e-3,
    verify_token_s=1e-3,
    verify_kv_token_s=2e-7,
)


def share(proposer: str | None, k: int, batch: int = 1, **percent: float) -> ShareRow:
    return ShareRow(**SAME, tp=1, proposer=proposer, k=k, batch=batch, **percent)


SHARES = (
    share(None, 0, drafting=0, verification=50, sampling=2, overhead=40),
    ShareRow(
        source="one", model="llama-3-70b", tp=4, k=0, batch=1, drafting=0, verification=80, sampling=1,
        overhead=20,
    ),
    share("eagle3", 2, drafting=40, verification=60, sampling=4, overhead=16),
    share("eagle", 2, drafting=30, verification=60, sampling=2, overhead=15),
    share("eagle3", 2, 11, drafting=20, verification=60, sampling=4, overhead=12),
    share("eagle3", 2, 21, drafting=10, verification=60, sampling=4, overhead=8),
    share("eagle", 2, 11, drafting=20, verification=60, sampling=4, overhead=14),
    share("ngram", 2, drafting=1, verification=80, sampling=2, overhead=10),
    share("ngram", 2, 11, drafting=2, verification=80, sampling=2, overhead=10),
    share("ngram", 2, 21, drafting=1, verification=80, sampling=2, overhead=4),
)  # fmt: skip
SWEEP = (
    SweepRow(**SAME, k=0, tpot_ms=2.0, acceptance_length=1),
    SweepRow(**SAME, k=2, proposer="eagle3", tpot_ms=3.0, acceptance_length=2),
    SweepRow(**SAME, k=2, proposer="eagle3", tpot_ms=3.1, acceptance_length=2),
    SweepRow(**SAME, k=3, proposer="draft-model", tpot_ms=4.0, acceptance_length=2.5),
)
LOOPS = tuple(
    LoopRow(**SAME, tp=1, prompt_tokens=100, output_tokens=201, concurrency=clients, tpot_ms=1e3 * seconds)
    for clients, seconds in ((1, 2e-3), (4, 6.5e-3), (8, 1.15e-2))
)
TIMINGS = HostTimings(hardware="made", sources={}, k_sweep=SWEEP, shares=SHARES, linear=LINEAR, loops=LOOPS)


def pass_s(k: int) -> float:
    return (k + 1) * 1e-3 + CONTEXT_S


def weighted(*rows: tuple[float, float, int]) -> tuple[float, float]:
    """Relative least squares of one level: (seconds, of a step of, rows of its kind) -> level, weight."""
    weights = [1 / (step_s**2 * crowd) for _, step_s, crowd in rows]
    return sum(w * row[0] for w, row in zip(weights, rows, strict=True)) / sum(weights), sum(weights)


def test_host_times_are_weighted_means_where_every_drafter_is_seen_at_one_k() -> None:
    """Then each drafter's own time takes up what its rows have above a plain step, whose rows alone tell it.

    A share of time is that of the GPU's pass times the bar over verification's.
    """
    found = fit_host(TIMINGS, model_of)
    plain, large = pass_s(0), 8e-3 / 4 + CONTEXT_S
    sampling = [plain * 2 / 50, large * 1 / 80]
    verifying = [pass_s(2) * 4 / 60, pass_s(2) * 2 / 60]
    off = [
        (2e-3 - plain - mean(sampling), 2e-3, 2),  # one of two rows of this source and model
        (plain * 40 / 50, plain * 100 / 50, 2),
        (large * 20 / 80, large * 100 / 80, 1),
        (8e-4, pass_s(0) + 2e-3 + 8e-4, 1),  # its step verifies K = 2 as it was fitted there
    ]
    eagle3 = [
        (6e-3 - pass_s(2) - mean(verifying), 6e-3, 3),
        (6.2e-3 - pass_s(2) - mean(verifying), 6.2e-3, 3),
        (pass_s(2) * 56 / 60, pass_s(2) * 100 / 60, 3),
    ]
    drafting = 1.5e-3 + 3 * 1e-4
    eagle = [
        (pass_s(2) * 45 / 60, pass_s(2) * 100 / 60, 1),
        (8e-4 + drafting, pass_s(2) + 8e-4 + drafting, 1),
    ]
    draft = (1e-2 - pass_s(3) - mean(verifying), 1e-2, 1)
    levels = [weighted(*rows) for rows in (off, eagle3, eagle, (draft,))]
    (step_s, step_weight), (three, three_weight), (two, two_weight), (model, _) = levels
    assert found.seconds["step_s"] == pytest.approx(step_s, rel=1e-6)
    assert found.seconds["pass_s:eagle3"] == pytest.approx((three - step_s) / 2, rel=1e-6)
    assert found.seconds["pass_s:eagle"] == pytest.approx((two - step_s) / 2, rel=1e-6)
    assert found.seconds["layer_s"] == pytest.approx((model - step_s) / (3 * 16), rel=1e-6)
    assert found.rows == 10

    misses = [
        (level - seconds, of_s, crowd)
        for rows, level in ((off, step_s), (eagle3, three), (eagle, two))
        for seconds, of_s, crowd in rows
    ]
    assert found.mape == pytest.approx(sum(abs(miss / of_s) for miss, of_s, _ in misses) / 10, rel=1e-5)
    # kinds: off and eagle3 of the first source, off of the 70B, eagle, the draft model, two of the linear one
    spread = sum((miss / of_s) ** 2 / crowd for miss, of_s, crowd in misses) / (7 - 4)
    assert found.stderr["step_s"] == pytest.approx(np.sqrt(spread / step_weight), rel=1e-5)
    for name, weight in (("eagle3", three_weight), ("eagle", two_weight)):
        error = np.sqrt(spread * (1 / step_weight + 1 / weight)) / 2
        assert found.stderr[f"pass_s:{name}"] == pytest.approx(error, rel=1e-5)
    for name, seen in (("plain", sampling), ("verify", verifying)):
        assert found.seconds[f"sampling:{name}"] == pytest.approx(mean(seen), rel=1e-9)
        assert found.stderr[f"sampling:{name}"] == pytest.approx(stdev(seen) / np.sqrt(2), rel=1e-9)


def test_growth_with_the_batch_is_read_off_the_ratios_of_bars() -> None:
    """A head's drafting takes what it does at batch 1; a lookup's is told by the overhead of its step."""
    found = fit_host(TIMINGS, model_of)
    three, two = pass_s(2) * 40 / 60, pass_s(2) * 30 / 60  # drafting of the heads
    growth = [
        (three * 12 / 20 - three * 16 / 40) / 10,
        (three * 8 / 10 - three * 16 / 40) / 20,
        (two * 14 / 20 - two * 15 / 30) / 10,
    ]
    assert found.seconds["request_total_s"] == pytest.approx(mean(growth), rel=1e-9)
    assert found.stderr["request_total_s"] == pytest.approx(stdev(growth) / np.sqrt(3), rel=1e-9)
    overhead = {n: found.seconds["step_s"] + mean(growth) / 2 * n for n in (11, 21)}
    lookups = [overhead[11] * 2 / 10 / 11, overhead[21] * 1 / 4 / 21]
    assert found.seconds["lookup_s"] == pytest.approx(mean(lookups), rel=1e-9)
    assert found.stderr["lookup_s"] == pytest.approx(stdev(lookups) / np.sqrt(2), rel=1e-9)


def test_loops_are_priced_beside_what_is_known_of_a_step() -> None:
    found = fit_host(TIMINGS, model_of)
    known = found.seconds["step_s"] + found.seconds["sampling:plain"]
    gpu = cast(LatencyModel, Gpu())
    told = request_s(LOOPS, {("llama-3.1-8b", 1): gpu}, known)
    assert (found.seconds["request_s"], found.stderr["request_s"]) == pytest.approx(told, rel=1e-9)


def test_time_per_request_is_relative_least_squares_over_loops() -> None:
    """Requests of 201 tokens take 201 steps, one a prefill: of C - 1 others, (C - 1) / 201 prefill."""
    gpu = cast(LatencyModel, Gpu())
    found, error = request_s(LOOPS, {("llama-3.1-8b", 1): gpu}, 5e-4)
    left = []
    for row in LOOPS:
        seconds, prefills = row.tpot_ms / 1e3, (row.concurrency - 1) / 201
        decodes = row.concurrency - prefills
        left.append(seconds - (decodes * (1e-3 + 200.5 * 1e-7) + prefills * 100 * 2e-6) - 5e-4)
    weights = [(row.tpot_ms / 1e3) ** -2 for row in LOOPS]
    clients = [row.concurrency for row in LOOPS]
    squares = sum(w * n * n for w, n in zip(weights, clients, strict=True))
    slope = sum(w * n * y for w, n, y in zip(weights, clients, left, strict=True)) / squares
    assert found == pytest.approx(slope, rel=1e-4)
    rest = sum(w * (y - slope * n) ** 2 for w, n, y in zip(weights, clients, left, strict=True))
    assert error == pytest.approx(np.sqrt(rest / 2 / squares), rel=1e-3)


def test_verification_in_an_engine_is_compared_at_every_batch_and_k() -> None:
    """At 500 tokens of context: 1 ms a query token here, and 2 ms more beside 0.2 us a token there."""
    distances = []
    for batch, k in ((1, 0), (1, 1), (1, 2), (4, 0), (4, 1), (4, 2)):
        seen = 2e-3 + 1e-3 * batch * (k + 1) + 2e-7 * batch * 500
        gpu = 1e-3 * batch * (k + 1) + 1e-7 * batch * 500
        distances.append(1 - gpu / seen)
    assert in_situ_error(TIMINGS, cast(LatencyModel, Gpu())) == pytest.approx(mean(distances), rel=1e-9)


def test_a_pass_that_the_gpu_bounds_is_not_identified() -> None:
    def slow(name: str, proposer: str | None, tp: int) -> LatencyModel:
        return cast(LatencyModel, replace(cast(Gpu, model_of(name, proposer, tp)), draft_s=5e-3))

    with pytest.raises(InputError, match=r"eagle pass: got '\d\.\d+ ms', is below its GPU time of 5\.000 ms"):
        fit_host(TIMINGS, slow)


def test_more_kinds_of_timings_than_unknowns_are_needed() -> None:
    """One source of Llama: off and two heads for three unknowns; the 70B model's is one more."""
    shares = (SHARES[0], SHARES[0].model_copy(update={"sampling": 3.0}), *SHARES[2:])
    linear = LINEAR.model_copy(update={"source": "one"})
    few = TIMINGS.model_copy(update={"k_sweep": SWEEP[:1], "shares": shares, "linear": linear})
    with pytest.raises(InputError, match="groups of host timings: got 3, must exceed 3 unknowns"):
        fit_host(few, model_of)
    assert fit_host(few.model_copy(update={"shares": (*shares, SHARES[1])}), model_of).rows == 8


HOST = HostFitResult(
    seconds={
        "step_s": 1e-3, "request_s": 2e-5, "request_total_s": 8e-6, "lookup_s": 3e-6, "layer_s": 5e-5,
        "pass_s:eagle": 7e-4, "pass_s:eagle3": 9e-4, "sampling:plain": 4e-5, "sampling:verify": 2e-4,
    },
    stderr={
        "step_s": 1e-4, "request_s": 2e-6, "request_total_s": 1e-6, "lookup_s": 3e-7, "layer_s": 5e-6,
        "pass_s:eagle": 7e-5, "pass_s:eagle3": 9e-5, "sampling:plain": 4e-6, "sampling:verify": 2e-5,
    },
    mape=0.01,
    rows=10,
)  # fmt: skip


def test_figures_of_the_host_are_what_was_fitted_and_half_of_the_growth() -> None:
    made = host_figures(HOST, "timings.yaml")
    host, sampler = made["host"], made["sampler"]
    assert isinstance(host, HostFit)
    assert isinstance(sampler, SamplerFit)
    fitted = {
        "step_s": host.step_s, "request_s": host.request_s, "layer_s": host.layer_s,
        "pass_s:eagle": host.pass_s["eagle"], "pass_s:eagle3": host.pass_s["eagle3"],
        "sampling:plain": sampler.step_s, "sampling:verify": sampler.verify_step_s,
    }  # fmt: skip
    for name, figure in fitted.items():
        assert (figure.value, figure.stderr) == (HOST.seconds[name], HOST.stderr[name])
        assert figure.provenance.kind is Kind.FITTED
        assert figure.provenance.source.startswith("timings.yaml; ")
    half = host.verify_request_s
    assert half.value == pytest.approx(4e-6)
    # a share of which 0 to 1 is known has a variance of 1 / 12
    assert half.stderr == pytest.approx(np.sqrt((0.5e-6) ** 2 + (8e-6) ** 2 / 12), rel=1e-5)
    # the bar was seen at some 500 tokens, whose matching takes 1.13 ns each
    assert host.lookup_request_s.value == pytest.approx(3e-6 - 500 * 1.13e-9, rel=1e-5)
    assert host.lookup_token_s.value == 1.13e-9
    assert host.exposed_s.value == 1e-4
    assert (sampler.bytes_per_logit.value, sampler.verify_bytes_per_logit.value) == (10.0, 18.0)


def test_a_lookup_s_time_per_request_is_no_less_than_nothing() -> None:
    short = replace(HOST, seconds=HOST.seconds | {"lookup_s": 1e-7})
    host = host_figures(short, "timings.yaml")["host"]
    assert isinstance(host, HostFit)
    assert host.lookup_request_s.value == 0.0
