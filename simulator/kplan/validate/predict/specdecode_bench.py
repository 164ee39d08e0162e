"""SpecDecode-Bench's simulated figures (arXiv:2601.11580 Fig. 10, 12), counted its way on its linear model.

What its simulator does, and this repeats: every batch is copies of one request; a request is prefilled, then
stepped until its output is full, and the last step may overshoot; the step at which ``c`` tokens exist emits
``acc[c - 1]``; drafting is charged at the KV tokens that the copies before it in the loop leave behind; the
oracle drafts what will be accepted, and a head charges it for a draft even of nothing; a lookup that accepted
nothing had a match with a fixed chance (under the oracle: none), and costs nothing otherwise. The speedup is
the ratio of the mean tokens per second over requests. Its draws of that chance are replaced by their mean,
which a model that is linear in the tokens allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.latency.linear import LinearModel
from kplan.latency.published import LinearRow, load_host_timings
from kplan.profiles import DrafterKind
from kplan.validate.table import Prediction, PublishedTable
from kplan.workload import load_workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

REQUESTS = 300
ORACLE = "oracle"
MATCHES = {"gsm8k": 0.2, "instructcoder": 0.8, "sharegpt": 0.2}
"""Chance that a lookup which accepted nothing had found a match (its constants)."""


@dataclass(frozen=True)
class Stepped:
    """One request under one policy.

    Attributes:
        prompt, output: tokens.
        at: (steps,) output tokens that exist when the step runs.
        emitted: (steps,) tokens it emits.
        tokens: (steps,) tokens that one copy verifies, in the mean.
        matched: (steps,) chance that there was a draft.
    """

    prompt: int
    output: int
    at: Ints
    emitted: Ints
    tokens: Floats
    matched: Floats


@dataclass(frozen=True)
class Requests:
    """Recorded or drawn requests of one proposer.

    Attributes:
        prompt_len: n prompt lengths.
        acc: n arrays of tokens emitted by position, bonus included, as long as the output.
        lookup_matches: of a lookup, the chance that one which accepted nothing had a match; None for a head.
    """

    prompt_len: Sequence[int]
    acc: Sequence[Ints]
    lookup_matches: float | None = None

    def stepped(self, k: int | None) -> tuple[Stepped, ...]:
        """Each request stepped with ``k`` drafts, or by the oracle (None)."""
        pairs = zip(self.prompt_len, self.acc, strict=True)
        return tuple(step(prompt, acc, k, self.lookup_matches) for prompt, acc in pairs)


def speedup(requests: Sequence[Stepped], batch: int, *, lookup_cost: bool) -> float:
    """Mean tokens per second over requests, each copied ``batch`` times, over that without speculation."""
    row = load_row()
    on = LinearModel(row, DrafterKind.LOOKUP if lookup_cost else DrafterKind.HEAD)
    with_sd = np.mean([one.output / _sd_s(on, one, batch) for one in requests])
    without = np.mean([one.output / _off_s(row, one, batch) for one in requests])
    return float(with_sd / without)


@cache
def load_row() -> LinearRow:
    """The published coefficients."""
    return load_host_timings().linear


def step(prompt: int, acc: Ints, k: int | None, lookup_matches: float | None) -> Stepped:
    """Step one request with ``k`` drafts, or by the oracle (None), until its output is full."""
    at, c = [], 1
    while c < len(acc):
        at.append(c)
        c += int(acc[c - 1] if k is None else min(acc[c - 1], k + 1))
    places = np.array(at, np.int64)
    offered = acc[places - 1].astype(np.int64)
    emitted = offered if k is None else np.minimum(offered, k + 1)
    asked = offered.astype(np.float64) if k is None else np.full(len(at), k + 1.0)
    matched = np.ones(len(at))
    if lookup_matches is not None:
        matched[offered == 1] = 0.0 if k is None else lookup_matches
    return Stepped(prompt, len(acc), places, emitted, 1 + matched * (asked - 1), matched)


def _prefill_s(row: LinearRow, one: Stepped, batch: int) -> float:
    return float(LinearModel(row).verify_s(batch * one.prompt, 0)) + row.overhead_s


def _off_s(row: LinearRow, one: Stepped, batch: int) -> float:
    """Latency of every copy without speculation."""
    kv = batch * (one.prompt + np.arange(1, one.output))
    steps = LinearModel(row).verify_s(np.full(len(kv), batch), kv) + row.overhead_s
    return _prefill_s(row, one, batch) + float(steps.sum())


def _sd_s(model: LinearModel, one: Stepped, batch: int) -> float:
    """Mean latency over the copies with speculation."""
    each = one.prompt + one.at
    verify = model.verify_s(batch * one.tokens, batch * each)
    # in the loop over copies the KV count grows by what each emits; in the last step each copy's is freed
    change = one.emitted.astype(np.float64)
    change[-1:] = -each[-1:]
    draft = model.draft_s(one.tokens - 1, batch * each + change * (batch - 1) / 2, verify)
    steps = verify + one.matched * draft + model.row.overhead_s
    return _prefill_s(model.row, one, batch) + float(steps.sum())


def predict(table: PublishedTable) -> list[Prediction]:
    """Speedups on the shipped trace models: rows at ``dataset``, ``proposer``, ``k`` (or oracle), ``batch``.

    Raises:
        InputError: a data set without a workload or a chance of a match.
    """
    setting = cache(lambda dataset, proposer: _drawn(table.name, dataset, proposer))
    stepped = cache(lambda dataset, proposer, k: setting(dataset, proposer).stepped(k))
    done = []
    for row in table.rows:
        dataset, proposer = str(row.at["dataset"]), str(row.at["proposer"])
        k = None if row.at["k"] == ORACLE else int(row.at["k"])
        ratio = speedup(stepped(dataset, proposer, k), int(row.at["batch"]), lookup_cost=proposer == "ngram")
        done.append(Prediction(ratio, ratio, ratio))
    return done


def _drawn(table: str, dataset: str, proposer: str) -> Requests:
    if dataset not in MATCHES:
        raise InputError(f"table {table}: dataset", dataset, f"known: {', '.join(MATCHES)}")
    traces = load_workload(dataset).traces(0, REQUESTS, proposer)
    trace = traces.proposers[proposer]
    bounds = zip(trace.offsets[:-1], trace.offsets[1:], strict=True)
    acc = [trace.acc[a:b].astype(np.int64) for a, b in bounds]
    return Requests(traces.prompt_len.tolist(), acc, MATCHES[dataset] if proposer == "ngram" else None)
