"""What would change the answer: the same load with one input changed, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kplan import metrics
from kplan.config.evidence import Change
from kplan.search.candidates import best_k
from kplan.search.evaluate import Evaluated
from kplan.search.phrases import fixed_k
from kplan.search.steady import Steady
from kplan.simulate import Setup, is_off

F64 = NDArray[np.float64]

ACCEPTANCE = (-0.2, -0.1, 0.1, 0.2)
"""Changes of the probability that a draft is accepted when those before it were, in shares of it."""
CONTEXTS = (0.5, 2.0, 4.0)


def changes(setup: Setup, load: Steady, chosen: Evaluated, replicas: int) -> tuple[Change, ...]:
    """The load as asked about, and with its acceptance, its context and its step times changed.

    Args:
        replicas: that share the load.
    """
    servers = replicas * setup.scenario.dp
    return tuple(_change(name, other, setup, chosen, servers) for name, other in _varied(setup, load))


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


def _change(name: str, load: Steady, setup: Setup, chosen: Evaluated, servers: int) -> Change:
    rate, clients = setup.rate, setup.scenario.concurrency
    if rate is None:
        assert clients is not None
        tpot, batch = load.at_batch(clients / servers)
    else:
        tpot, batch = load.at_rate(rate / servers)
    kept = kept_k(chosen, batch)
    known = np.isfinite(tpot)
    best = best_k(np.where(known, 1 / tpot, 0.0)) if known.any() else None
    return Change(
        name=name,
        tpot_ms=tuple(float(one) * 1e3 if np.isfinite(one) else None for one in tpot),
        kept_k=kept,
        best_k=best,
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
