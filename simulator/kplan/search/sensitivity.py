"""What would change the answer: the same load with one input changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kplan import metrics
from kplan.config.evidence import Change, Sensitivity
from kplan.search.candidates import best_k
from kplan.search.evaluate import Evaluated
from kplan.search.phrases import fixed_k
from kplan.search.steady import Steady
from kplan.simulate import Setup, is_off

F64 = NDArray[np.float64]

ACCEPTANCE = (-0.2, -0.1, 0.1, 0.2)
"""Changes of the probability that a draft is accepted when those before it were, in shares of it."""
CONTEXTS = (0.5, 2.0, 4.0)


def sensitivity(
    setup: Setup, load: Steady, done: Sequence[Evaluated], chosen: Evaluated, replicas: int
) -> Sensitivity | None:
    """The load as asked about, and with its acceptance, its context and its step times changed.

    The closed form gives each change in TPOT by K; the TPOT that it starts from is the simulated one, so that
    the first row is what was simulated. A K that was not sustained there starts from the closed form, off as
    much as that of the nearest K that was.

    Args:
        done: every policy at the load asked about.
        replicas: that share the load.
    """
    if len(load.tokens) < 2:
        return None
    servers = replicas * setup.scenario.dp
    rest = [(name, *_balance(other, setup, servers)) for name, other in _varied(setup, load)]
    asked, batch = rest[0][1:]
    simulated = _simulated(done, len(asked))
    start = _nearest(simulated / asked)
    kept = kept_k(chosen, batch)
    rows = [_change(name, start * tpot, kept_k(chosen, at)) for name, tpot, at in rest[1:]]
    rows = [_change(rest[0][0], simulated, kept), *rows]
    if all(one.best_k is None for one in rows):
        return None
    closed = float(asked[kept])
    return Sensitivity(changes=tuple(rows), closed_ms=closed * 1e3 if np.isfinite(closed) else None)


def _simulated(done: Sequence[Evaluated], width: int) -> F64:
    """(width,) simulated TPOT in seconds of every fixed K, NaN where it is saturated or was not run."""
    tpot = np.full(width, np.nan)
    for one in done:
        k = fixed_k(one.spec.text)
        if k is not None and k < width:
            tpot[k] = one.tpot_s
    return tpot


def _nearest(ratio: F64) -> F64:
    """(n,) ratios with each NaN replaced by the nearest that is none, all 1 where there is none."""
    known = np.flatnonzero(np.isfinite(ratio))
    if not len(known):
        return np.ones(len(ratio))
    every = np.arange(len(ratio))
    return np.asarray(ratio[known[np.abs(every[:, None] - known).argmin(axis=1)]])


def _varied(setup: Setup, load: Steady) -> Iterator[tuple[str, Steady]]:
    yield "as asked", load
    for change in ACCEPTANCE if setup.drafter.tree is None else ():
        yield f"acceptance {change:+.0%}", replace(load, tokens=accepted_otherwise(load.tokens, change))
    for times in CONTEXTS:
        context = times * load.context
        prompt = max(1.0, load.prompt + context - load.context)
        yield f"context {times:g}x", replace(load, context=context, prompt=prompt)
    other = load.latency.alternate()
    if other is not None:
        off = load.latency_off.on(other.calibration)
        yield "other GEMM times", replace(load, latency=other, latency_off=off)


def accepted_otherwise(tokens: F64, change: float) -> F64:
    """(max_k + 1,) tokens per step where every draft is accepted with ``1 + change`` times its probability.

    That of a draft whose predecessors were accepted is the quotient of the gains in tokens of its depth and
    the one before; it never passes 1.
    """
    gained = np.concatenate([[1.0], np.diff(tokens)])
    share = np.divide(gained[1:], gained[:-1], out=np.zeros(len(tokens) - 1), where=gained[:-1] > 0)
    kept = np.cumprod(np.clip(share * (1 + change), 0.0, 1.0))
    return np.concatenate([[1.0], 1.0 + np.cumsum(kept)])


def _balance(load: Steady, setup: Setup, servers: int) -> tuple[F64, F64]:
    """(max_k + 1,) TPOT in seconds and batch by K, where the load of ``servers`` balances."""
    rate, clients = setup.rate, setup.scenario.concurrency
    if rate is not None:
        return load.at_rate(rate / servers)
    assert clients is not None
    return load.at_batch(clients / servers)


def _change(name: str, tpot: F64, kept: int) -> Change:
    known = np.isfinite(tpot)
    return Change(
        name=name,
        tpot_ms=tuple(float(one) * 1e3 if np.isfinite(one) else None for one in tpot),
        kept_k=kept,
        best_k=best_k(np.where(known, 1 / tpot, 0.0)) if known.any() else None,
        loss=float(tpot[kept] / np.nanmin(tpot) - 1) if known[kept] else None,
    )


def kept_k(chosen: Evaluated, batch: F64) -> int:
    """The K that the recommended policy runs: its own, that of its table at the batch which it balances at,
    or the mean one that it used.

    Args:
        batch: (max_k + 1,) requests at which each K balances, NaN where it does not.
    """
    if is_off(chosen.spec):
        return 0
    fixed = fixed_k(chosen.spec.text)
    if fixed is not None:
        return fixed
    mean = round(metrics.mean_k(chosen.runs))
    if chosen.spec.name != "table":
        return mean
    ranges = sorted(chosen.spec.kwargs["ranges"])
    held = [
        k
        for start, end, k in ranges
        if k < len(batch) and start <= batch[k] and (end is None or batch[k] < end + 1)
    ]
    return int(held[0]) if held else mean
