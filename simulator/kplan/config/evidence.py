"""What the pictures of a report are drawn from, beside the policies compared: part of ``plan.json``.

Two ways of knowing, kept apart: the sweep and the SLO curves are simulated; the K map and the Pareto front
are closed forms, a steady step of the latency model at the expected acceptance; the sensitivity is what such
a closed form makes of the simulated TPOT.
"""

from __future__ import annotations

from typing import Literal

from kplan.config.record import Record


class SweepPoint(Record):
    """One policy at one load; rates over all replicas. Intervals: 95% over replications, None with one."""

    load: float
    batch: float | None
    """Mean requests per step, None when saturated."""
    context: float | None
    """Mean context of a decoding request in tokens, None when saturated."""
    tpot_ms: float | None
    """Mean TPOT; None when saturated."""
    tpot_ci95: tuple[float, float] | None
    output_tok_s: float
    """Saturated: what the policy sustains."""
    output_tok_s_ci95: tuple[float, float] | None
    saturated: bool


class SweepCurve(Record):
    """One policy over all loads of the sweep, in rising order."""

    policy: str
    points: tuple[SweepPoint, ...]


class Crossing(Record):
    """The load at which two policies, one of them recommended or ``off``, have the same mean TPOT."""

    below: str
    """The faster policy at smaller loads."""
    above: str
    load: float
    ci95: tuple[float, float] | None
    """Over replications, paired."""


class Sweep(Record):
    """A few policies at loads around the one asked about, on the same requests."""

    unit: Literal["requests/s", "requests at a time"]
    asked: float
    replications: int
    curves: tuple[SweepCurve, ...]
    crossings: tuple[Crossing, ...]


class KMap(Record):
    """The fixed K of most expected tokens per second in a steady step, by batch and context (closed form)."""

    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    best_k: tuple[tuple[int | None, ...], ...]
    """(contexts, batches); None where the KV cache has no room for so many such requests."""
    gain: tuple[tuple[float | None, ...], ...]
    """Tokens per second at that K over those without speculation; 1 where K is 0."""
    visited: tuple[int, int] | None
    """5% and 95% quantile of the batches that the recommended policy visited at the load asked about."""


class Depth(Record):
    """Acceptance of the draft at one depth along the walk of the longest drafts asked about."""

    draft: int
    kept: float
    """Share of decode steps that keep this draft and all before it."""
    conditional: float
    """Of the steps that kept those before it, the share that keep this one; no draft there is none kept."""
    known: bool
    """Whether the recording, or the figures, behind the acceptance reach so deep."""


class SloCurve(Record):
    """Quantiles over the requests of all replications at the load asked about, ``shares`` of them below."""

    policy: str
    shares: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    ttft_ms: tuple[float, ...]


class FrontPoint(Record):
    """A batch at a fixed K, prefills of the requests that follow each other included (closed form)."""

    k: int
    batch: int
    tpot_ms: float
    tok_s_gpu: float


class Front(Record):
    """The best trades of TPOT against output tokens per second and GPU, and those without speculation."""

    best: tuple[FrontPoint, ...]
    off: tuple[FrontPoint, ...]


class Change(Record):
    """The load with one input changed: the simulated TPOT times the change that the closed form gives."""

    name: str
    tpot_ms: tuple[float | None, ...]
    """By K from 0; None where the load is not sustained, or the drafter does not run that K."""
    kept_k: int
    """The K that today's answer runs there."""
    best_k: int | None
    """The smallest K within 1% of the best; None where no K sustains the load."""
    loss: float | None
    """TPOT of ``kept_k`` over that of the best, less 1; None where it is not sustained."""


class Sensitivity(Record):
    """What would change the answer."""

    changes: tuple[Change, ...]
    """The first is the load as it was asked about."""
    closed_ms: float | None
    """TPOT of the answer's K at the load asked about, by the closed form alone; None: not sustained."""


class Evidence(Record):
    """What the pictures of a report are drawn from. What does not apply is None or empty."""

    sweep: Sweep | None
    k_map: KMap
    acceptance: tuple[Depth, ...]
    slo: tuple[SloCurve, ...]
    front: Front
    sensitivity: Sensitivity | None
    """None where nothing is drafted, or no K sustains the load whatever changes."""
    limits: tuple[str, ...]
    """What a reader must know of this answer, a sentence each."""
