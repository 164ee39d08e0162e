"""What one replication measured, from the request and step records of its replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.engine import Fleet, Replica
from kplan.engine.state import (
    BIN_BATCH_S,
    BINS,
    PREEMPTIONS,
    STEPS,
    SUMS,
    W_CLOSE_S,
    W_EMITTED,
    W_OPEN_S,
)
from kplan.metrics.steady import Steadiness, steadiness

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

BACKLOG_SHARE = 0.03
"""A load is saturated when what waits grows by more than this share of the requests that arrive."""


@dataclass(frozen=True)
class Measured:
    """One replication, measured in its window (warm-up and drain cut off).

    Attributes:
        ttft_s, tpot_s: (n,) per request of the window, in order of arrival within each replica; a request of
            one token has no TPOT (NaN).
        done: (m, 3) TTFT, TPOT, and 1 / window seconds of its replica (scaled), of every request that
            finished while the window was open.
        sums: (SUMS,) window sums over all replicas (see kplan.engine.state).
        window_s: (replicas,) seconds measured on each replica that got any request.
        emitted: (replicas,) tokens emitted in the window by each replica, scaled.
        k_steps, batch_steps: histograms over the window, summed over replicas.
        proposer_steps: (P,) decoding request-steps of the window that verified drafts of each of several
            proposers, summed over replicas; 0 where there is one.
        bins: (BINS, 3) seconds, batch x seconds and tokens of the window in slices, summed over replicas.
        in_steps, in_records: mean number of running requests over the window, counted twice: over the steps
            (batch x seconds), and over the requests (seconds of the window from admission to finish).
        backlog_share: growth of the requests that wait over the window / requests arrived in it.
        backlog_noise: growth that chance alone would explain, same unit.
        steps, output_tokens, preemptions: counts over the whole run.
    """

    ttft_s: F64
    tpot_s: F64
    done: F64
    sums: F64
    window_s: F64
    emitted: F64
    k_steps: I64
    batch_steps: I64
    proposer_steps: I64
    bins: F64
    in_steps: float
    in_records: float
    backlog_share: float
    backlog_noise: float
    requests: int
    steps: int
    output_tokens: int
    preemptions: int

    @property
    def saturated(self) -> bool:
        """The backlog grew, by more than chance explains."""
        return self.backlog_share > max(BACKLOG_SHARE, self.backlog_noise)

    @property
    def steadiness(self) -> Steadiness:
        """Whether the window still holds some of the warm-up."""
        return steadiness(self.bins, len(self.window_s))

    @property
    def little_gap(self) -> float:
        """Little's law as a check: running requests by the records over those by the steps, less 1.

        0 up to rounding where every running request is in every step; above it where requests sit some out
        (preempted, beyond the token budget, or while SGLang runs a prompt on its own); never below.
        """
        return self.in_records / self.in_steps - 1 if self.in_steps else 0.0

    @property
    def output_tok_s(self) -> float:
        """Output tokens per second of all replicas."""
        return float((self.emitted / self.window_s).sum())

    @property
    def mean_tpot_s(self) -> float:
        """Mean TPOT over the requests of the window."""
        return run_mean(self.tpot_s)


def measure(fleet: Fleet, scale: float = 1.0) -> Measured:
    """Reduce the arrays of a finished fleet.

    Args:
        scale: requests there are / requests simulated; rates are multiplied by it.
    """
    ttft, tpot, done, sums = [], [], [], np.zeros(SUMS)
    window, emitted, bins = [], [], np.zeros((BINS, 3))
    growth = noise = arrived = in_steps = in_records = 0.0
    busy = [replica for replica in fleet.replicas if len(replica.admitted)]
    for replica, (open_s, close_s) in zip(busy, _spans(busy), strict=True):
        req, m, rows = replica.requests[replica.admitted], replica.machine, replica.window
        first_s = req.first_token_s - req.arrival_s
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = (req.finish_s - req.first_token_s) / (req.output_len - 1)
        token_s = np.where(req.output_len > 1, spread, np.nan)
        ttft.append(first_s[rows])
        tpot.append(token_s[rows])
        sums += np.nan_to_num(m.sums)
        bins += m.bins
        window.append(close_s - open_s)
        inside = (req.finish_s > open_s) & (req.finish_s <= close_s)
        share = np.full(int(inside.sum()), scale / (close_s - open_s))
        done.append(np.column_stack([first_s[inside], token_s[inside], share]))
        emitted.append(m.sums[W_EMITTED])
        in_steps += m.bins[:, BIN_BATCH_S].sum() / (close_s - open_s)
        run_s = np.minimum(req.finish_s, close_s) - np.maximum(req.admitted_s, open_s)
        in_records += np.maximum(run_s, 0.0).sum() / (close_s - open_s)
        if not replica.limits.closed:
            up, chance = backlog(req.arrival_s, req.admitted_s, rows)
            growth += up
            noise += chance**2
            arrived += rows.stop - rows.start
    machines = [replica.machine for replica in busy]
    return Measured(
        ttft_s=np.concatenate(ttft),
        tpot_s=np.concatenate(tpot),
        done=np.concatenate(done),
        sums=sums,
        window_s=np.array(window),
        emitted=scale * np.array(emitted),
        k_steps=np.sum([m.k_steps for m in machines], axis=0),
        batch_steps=np.sum([m.batch_steps for m in machines], axis=0),
        proposer_steps=np.sum([m.proposer_steps for m in machines], axis=0),
        bins=bins,
        in_steps=float(in_steps),
        in_records=float(in_records),
        backlog_share=growth / arrived if arrived else 0.0,
        backlog_noise=float(np.sqrt(noise)) / arrived if arrived else 0.0,
        requests=sum(len(r.admitted) for r in busy),
        steps=int(sum(m.counters[STEPS] for m in machines)),
        output_tokens=int(sum(r.requests.emitted[r.admitted].sum() for r in busy)),
        preemptions=int(sum(m.counters[PREEMPTIONS] for m in machines)),
    )


def _spans(replicas: Sequence[Replica]) -> list[tuple[float, float]]:
    """Seconds at which each replica's window opens and closes.

    Replicas that are measured whole share one, from the first step of all to the last: a replica that still
    waits for its first request, or has served its last one, serves nothing in that time.
    """
    spans = [(float(one.machine.sums[W_OPEN_S]), float(one.machine.sums[W_CLOSE_S])) for one in replicas]
    if all(one.window == slice(0, len(one.admitted)) for one in replicas):
        opened, closed = zip(*spans, strict=True)
        return [(min(opened), max(closed))] * len(spans)
    return spans


def backlog(arrival_s: F64, admitted_s: F64, rows: slice) -> tuple[float, float]:
    """Growth of the number that waits over the window (least-squares line), and 4 sigma of chance.

    Only what waits to be admitted can grow without end. The running batch follows the arrivals, as rate x
    service time (Little's law), and is bounded by seats and KV cache: a load whose rate rises, or a replica
    that still fills up, is not taken for one that falls behind.

    Args:
        arrival_s, admitted_s: (n,) in order of arrival.
        rows: the requests of the window; the number that waits is counted after the arrival of each.
    """
    at = arrival_s[rows]
    if len(at) < 8 or at[-1] <= at[0]:
        return 0.0, 0.0
    admitted = np.searchsorted(np.sort(admitted_s), at, side="right")
    arrived = np.searchsorted(np.sort(arrival_s), at, side="right")  # all of those that come at one moment
    wait = arrived - admitted
    slope = np.polyfit(at - at[0], wait, 1)[0]
    return float(slope * (at[-1] - at[0])), float(4.0 * np.sqrt(2.0 * wait.mean()))


def run_mean(values: F64) -> float:
    """Mean of one replication's values, NaNs left out; NaN when none is left."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")
