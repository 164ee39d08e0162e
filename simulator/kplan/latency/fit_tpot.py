"""Read tables of end-to-end measurements: CSV, one row per run at a fixed concurrency (closed loop).

Columns:

    concurrency         requests kept in flight
    tpot_ms             mean time per output token; or ``output_tok_s``: output tokens per second of all
    k, proposer         drafts per step, and by what; 0 or blank without speculation
    acceptance_length   tokens per step and request, bonus included (1 without speculation); or
                        ``acceptance_pct``: accepted share of the drafted tokens
    verified            drafts verified per request and step (k when blank: a lookup without a match brings
                        fewer)
    prompt_tokens, output_tokens          mean lengths

Lines that begin with ``#`` are remarks. How a row becomes a mean step: a request of O output tokens at an
acceptance length L takes n = 1 + (O - 1) / L steps, its prefill among them. Requests being staggered, the
number of those that prefill in a step is binomial with share 1 / n. TPOT is the mean over steps in which the
request decodes itself, so prefills are those of the other C - 1; throughput counts all n steps of all C.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import median
from typing import Annotated, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator
from scipy.stats import binom

from kplan.config.record import Record
from kplan.errors import InputError
from kplan.files import read_text
from kplan.latency.fit_figures import file_source
from kplan.latency.observed import MOST_DRAFTS, Observation, shape_row

SECONDS_BELOW_MS = 0.1
"""A median TPOT below this many milliseconds is taken for seconds."""

TAIL = 1e-6
"""Numbers of simultaneous prefills rarer than this are left out."""

COLUMNS = {
    "concurrency", "tpot_ms", "output_tok_s", "k", "proposer", "acceptance_length", "acceptance_pct",
    "verified", "prompt_tokens", "output_tokens",
}  # fmt: skip
NEEDED = ("concurrency", "prompt_tokens", "output_tokens")

MOST_BYTES = 2**24
"""Longest table that is read; a row takes 60 bytes."""
MOST_REQUESTS, MOST_TOKENS = 100_000, 100_000_000
MOST_TOGETHER = 10_000_000
"""Concurrencies of all rows, summed: every row is a distribution over as many requests."""
"""No server runs more requests at a time, no request is longer."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class TpotRow(Record):
    """One run."""

    concurrency: Annotated[int, Field(ge=1, le=MOST_REQUESTS)]
    tpot_ms: Positive | None = None
    output_tok_s: Positive | None = None
    k: Annotated[int, Field(ge=0, le=MOST_DRAFTS)] = 0
    proposer: str | None = None
    acceptance_length: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    acceptance_pct: Annotated[float, Field(ge=0, le=100)] | None = None
    verified: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    prompt_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)]
    output_tokens: Annotated[int, Field(ge=2, le=MOST_TOKENS)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.tpot_ms is None) == (self.output_tok_s is None):
            raise ValueError("one of tpot_ms and output_tok_s must be given")
        if self.k > 0 and self.proposer is None:
            raise ValueError(f"k is {self.k}, but no proposer is named")
        if self.k > 0 and self.acceptance_length is None and self.acceptance_pct is None:
            raise ValueError(f"k is {self.k}: acceptance_length (or acceptance_pct) must be given")
        if self.tokens_per_step > self.k + 1:
            raise ValueError(f"an acceptance length of {self.tokens_per_step:g} exceeds k + 1 = {self.k + 1}")
        return self

    @property
    def drafts(self) -> float:
        """Drafts verified per request and step."""
        return self.k if self.verified is None else self.verified

    @property
    def tokens_per_step(self) -> float:
        """Acceptance length; from the accepted share of the drafts where it is not given."""
        if self.acceptance_length is not None:
            return self.acceptance_length
        return 1.0 + (self.acceptance_pct or 0.0) / 100 * self.drafts

    @property
    def steps(self) -> float:
        """Steps of one request, its prefill included."""
        return 1.0 + (self.output_tokens - 1) / self.tokens_per_step

    def step_seconds(self) -> float:
        """Mean seconds of a step: of those that a request decodes in (TPOT), or of all (throughput)."""
        if self.output_tok_s is not None:
            return self.concurrency * self.output_tokens / self.output_tok_s / self.steps
        assert self.tpot_ms is not None
        return self.tpot_ms * 1e-3 * self.tokens_per_step

    def mixture(self) -> tuple[list[list[float]], list[float]]:
        """Shapes of the steps behind the mean and their weights, by the number of prefills in them."""
        others = self.concurrency - (1 if self.tpot_ms is not None else 0)
        chance = binom.pmf(np.arange(others + 1), others, 1.0 / self.steps)
        kept = np.flatnonzero(chance > TAIL)
        weights = chance[kept] / chance[kept].sum()
        return [self._shape(int(prefills)) for prefills in kept], [float(weight) for weight in weights]

    def _shape(self, prefills: int) -> list[float]:
        requests = self.concurrency - prefills
        tokens = round(requests * (1.0 + self.drafts))
        context = self.prompt_tokens + self.output_tokens / 2
        return shape_row(
            decode_requests=requests,
            decode_tokens=tokens,
            decode_kv_tokens=requests * context,
            decode_qk_tokens=tokens * context,
            prefill_requests=prefills,
            prefill_tokens=prefills * self.prompt_tokens,
            prefill_kv_tokens=prefills * self.prompt_tokens,
            prefill_qk_tokens=prefills * self.prompt_tokens**2 / 2,
            sampled_rows=tokens + prefills,
            draft_requests=self.concurrency if self.k else 0,
            draft_k=self.k,
        )

    def observation(self, source: str, place: str) -> Observation:
        shapes, weights = self.mixture()
        return Observation(
            source,
            place,
            self.proposer,
            self.k,
            self.step_seconds(),
            np.array(shapes),
            np.array(weights),
        )


def read_tpot(path: Path) -> list[Observation]:
    """The runs of a table. Raises InputError naming the row and column that is wrong."""
    rows = read_rows(path)
    tpots = [row.tpot_ms for _, row in rows if row.tpot_ms is not None]
    if tpots and median(tpots) < SECONDS_BELOW_MS:
        raise InputError(
            f"median tpot_ms of {path.name}", median(tpots), "looks like seconds", "multiply it by 1000"
        )
    together = sum(row.concurrency for _, row in rows)
    if together > MOST_TOGETHER:
        bound = f"at most {MOST_TOGETHER:,} over all rows are priced"
        raise InputError(f"sum of concurrency in {path.name}", f"{together:,}", bound, "give fewer rows")
    source = file_source(path)
    return [row.observation(source, place) for place, row in rows]


def read_rows(path: Path) -> list[tuple[str, TpotRow]]:
    """The rows as they are written, each with its place in the file."""
    lines = read_text("--tpot", path, MOST_BYTES, "utf-8-sig").splitlines()
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if line.strip() and line[0] != "#"]
    if len(numbered) < 2:
        raise InputError("--tpot", path.name, "has no rows", f"columns are {', '.join(sorted(COLUMNS))}")
    head = _cells(path, *numbered[0])
    _check_head(path, head)
    return [(f"line {n}", _row(path, n, head, line)) for n, line in numbered[1:]]


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        where = f"line {number} of {path.name}"
        raise InputError(where, line[:40], f"is no row of CSV ({error})", "is a quote left open?") from None


def _check_head(path: Path, head: list[str]) -> None:
    missing = [name for name in NEEDED if name not in head]
    if not {"tpot_ms", "output_tok_s"} & set(head):
        missing.append("tpot_ms (or output_tok_s)")
    if missing:
        raise InputError(f"columns of {path.name}", ", ".join(missing), "are missing", "add them")
    twice = sorted({name for name in head if head.count(name) > 1})
    if twice:
        raise InputError(f"column of {path.name}", twice[0], "is there twice", "keep one of them")
    unknown = [name for name in head if name not in COLUMNS]
    if unknown:
        raise InputError(
            f"column of {path.name}", unknown[0], f"known: {', '.join(sorted(COLUMNS))}", "rename it"
        )


def _row(path: Path, number: int, head: list[str], line: str) -> TpotRow:
    cells = _cells(path, number, line)
    if len(cells) != len(head):
        raise InputError(
            f"line {number} of {path.name}",
            f"{len(cells)} cells",
            f"the header has {len(head)}",
            "the file may be cut off",
        )
    given = {name: cell for name, cell in zip(head, cells, strict=True) if cell}
    try:
        return TpotRow.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the row"
        shown = first["input"] if first["loc"] else line
        raise InputError(f"{where} in line {number} of {path.name}", shown, first["msg"]) from None
