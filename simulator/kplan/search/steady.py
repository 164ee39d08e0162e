"""A load at rest in closed form: expected acceptance, mean lengths, and the batch at which it balances.

Where a simulation would take too long: every K, at many batches, contexts and acceptances. What it leaves out
is chance: the spread of batches around their mean, and queues.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.latency import LatencyModel, StepShape
from kplan.search.candidates import WalkCurve
from kplan.simulate import Setup

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

GRID = 48
"""Batches at which a load is priced; between them it is interpolated."""


@dataclass(frozen=True)
class Steady:
    """Requests alike, at their mean lengths, on one server.

    Attributes:
        latency: with the drafter at a K that never changes; latency_off: without a drafter, for K = 0.
        tokens: (max_k + 1,) expected tokens per request and step, 0 at a K that is not run.
        verified: (max_k + 1,) drafts verified per request and step.
        prompt, output, context: mean tokens.
        room: tokens that the KV cache holds; seats: requests that may run.
    """

    latency: LatencyModel
    latency_off: LatencyModel
    tokens: F64
    verified: F64
    prompt: float
    output: float
    context: float
    room: int
    seats: int

    def batches(self) -> I64:
        """(n,) batches from 1 to what seats and KV cache hold, evenly spaced in their logarithm."""
        return spaced(1, max(1, int(min(self.seats, self.room / self.context))), GRID)

    def decode_s(self, batch: I64, context: F64) -> F64:
        """(n, max_k + 1) seconds of a decode step of (n,) batches at (n,) mean contexts."""
        return self._price(batch[:, None], context[:, None], np.zeros((1, 1)))

    def step_s(self, batch: I64) -> F64:
        """(n, max_k + 1) mean seconds of a step of (n,) batches, whose requests follow each other: of those
        that end, as many come in, and their prompts ride in some of the steps."""
        ends = batch[:, None] * self.tokens / self.output
        prompts = np.ceil(ends)
        share = np.divide(ends, prompts, out=np.zeros_like(ends), where=prompts > 0)
        context = np.full((len(batch), 1), self.context)
        alone = self._price(batch[:, None], context, np.zeros((1, 1)))
        joined = self._price(batch[:, None], context, prompts)
        return np.asarray((1 - share) * alone + share * joined)

    def tpot_s(self, batch: I64) -> F64:
        """(n, max_k + 1) seconds per token of a request in such steps; NaN at a K that is not run."""
        with np.errstate(divide="ignore"):
            tpot = self.step_s(batch) / self.tokens
        return np.where(self.tokens > 0, tpot, np.nan)

    def at_rate(self, rate: float) -> tuple[F64, F64]:
        """(max_k + 1,) TPOT in seconds and batch at which ``rate`` requests/s per server balance.

        Little's law: batch = rate x output x TPOT(batch). NaN where no batch that fits serves the rate.
        """
        batch = self.batches()
        tpot = self.tpot_s(batch)
        out = np.full((2, len(self.tokens)), np.nan)
        for k in np.flatnonzero(self.tokens):
            need = rate * self.output * tpot[:, k]
            fits = np.flatnonzero(need <= batch)
            if not len(fits):
                continue
            at = int(fits[0])
            if at == 0:  # one request at a time is more than the rate keeps busy
                out[:, k] = tpot[0, k], need[0]
                continue
            low, high = need[at - 1] - batch[at - 1], need[at] - batch[at]
            x = float(batch[at - 1] + (batch[at] - batch[at - 1]) * low / (low - high))
            out[:, k] = x / (rate * self.output), x
        return out[0], out[1]

    def at_batch(self, batch: float) -> tuple[F64, F64]:
        """(max_k + 1,) TPOT in seconds and batch of a closed loop of ``batch`` requests per server."""
        whole = np.array([max(1, round(batch))])
        fits = whole[0] * self.context <= self.room
        tpot = self.tpot_s(whole)[0] if fits else np.full(len(self.tokens), np.nan)
        return tpot, np.where(np.isnan(tpot), np.nan, float(whole[0]))

    def _price(self, batch: I64, context: F64, prompts: F64) -> F64:
        """Seconds of (n, 1) batches at every K with ``prompts`` (n, max_k + 1) whole ones; column 0 without a
        drafter."""
        columns = []
        for model, ks in ((self.latency_off, slice(0, 1)), (self.latency, slice(1, None))):
            verified = self.verified[None, ks]
            if not verified.size:
                continue
            riding = np.broadcast_to(prompts, (len(batch), len(self.verified)))[:, ks]
            k = np.arange(len(self.verified))[None, ks]
            decoding = StepShape.decode(batch, k, context, verified)
            shape = replace(
                decoding,
                prefill_requests=riding,
                prefill_tokens=riding * self.prompt,
                prefill_kv_tokens=riding * self.prompt,
                prefill_qk_tokens=riding * self.prompt**2 / 2,
                sampled_rows=decoding.sampled_rows + riding,
                draft_requests=batch + riding,
            )
            columns.append(model.step_seconds(shape).total_s)
        return np.concatenate(columns, axis=1)


def spaced(first: int, last: int, n: int) -> I64:
    """At most ``n`` distinct whole numbers from ``first`` to ``last``, evenly spaced in their logarithm."""
    return np.unique(np.geomspace(first, last, n).round().astype(np.int64))


def steady(setup: Setup, curve: WalkCurve, prompt: float) -> Steady:
    """The load of ``setup`` at rest.

    Args:
        curve: tokens and verified drafts per request and step at each K.
        prompt: mean prompt, tokens.
    """
    return Steady(
        latency=setup.latency,
        latency_off=setup.latency_off,
        tokens=curve.tokens,
        verified=curve.verified,
        prompt=prompt,
        output=setup.lengths.output,
        context=setup.lengths.context,
        room=setup.kv_tokens,
        seats=setup.max_num_seqs,
    )
