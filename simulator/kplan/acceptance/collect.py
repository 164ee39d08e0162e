"""Recordings of steps gathered into a trace whose other positions are unknown, or pooled into figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.columns import pack, request_names
from kplan.acceptance.figures import AcceptanceFigures, FiguresKind
from kplan.acceptance.placing import Ints, Steps
from kplan.acceptance.trace import MAX_K, TraceSet
from kplan.errors import InputError
from kplan.files import most_unpacked
from kplan.provenance import Kind, Provenance

LOOKUPS = ("ngram", "suffix")
"""Proposers of these names, or of one that starts so, may have nothing to offer at a step."""


@dataclass(frozen=True)
class ImportOptions:
    """What the user adds to a recording that does not say it.

    Attributes:
        proposer: name of the proposer that drafted; None where the source names it.
        recorded_k: drafts asked for in every step; None where the source says.
        tokenizer: name of the tokenizer that counted the tokens.
        figures: pool the steps into a histogram, even where they could be placed.
    """

    proposer: str | None = None
    recorded_k: int | None = None
    tokenizer: str = ""
    figures: bool = False

    def needed_proposer(self, what: str) -> str:
        """The proposer's name. Raises InputError where it was not given: ``what`` does not know it."""
        if self.proposer is None:
            fix = "kplan traces import FILE --proposer NAME says it"
            raise InputError("proposer of the file", "nothing", f"{what} does not name what drafted", fix)
        return self.proposer


class StepCollector:
    """Collects requests of one proposer: two bytes a position are kept, and a pooled histogram.

    Args:
        file_bytes: size of the recording, which bounds the positions that it may speak of.
    """

    def __init__(self, proposer: str, options: ImportOptions, file_bytes: int) -> None:
        self.proposer = proposer
        self.options = options
        self.without = 0
        """Rows left out because they carry no acceptance at all; counted by the caller."""
        self._ids: list[str] = []
        self._prompt_len: list[int] = []
        self._positions, self._most_positions = 0, most_unpacked(file_bytes) // 2
        self._acc: list[NDArray[np.uint8]] = []
        self._seen: list[NDArray[np.uint8]] = []
        self._histogram = np.zeros(MAX_K + 1, np.int64)
        self._drafted: int | None = 0
        self._asked = options.recorded_k or 0
        self._shown = 0
        self._unplaced = self._clipped = self._undrafted = self._guessed = 0

    def add_row(self, request_id: str, prompt_len: int, output_len: int, steps: Steps | None) -> None:
        """Append a request; ``steps`` None: nothing is known of where its steps stood.

        Raises:
            InputError: the outputs are longer than a file of its size speaks of.
        """
        self._positions += output_len
        if self._positions > self._most_positions:
            bound = f"outputs of {self._most_positions:,} tokens in all are read of a file of this size"
            raise InputError(f"output of request {request_id}", output_len, bound, "mend the length")
        acc, seen = np.ones(output_len, np.uint8), np.zeros(output_len, np.uint8)
        if steps is None:
            self._unplaced += 1
        else:
            emitted = steps.accepted + 1
            left = output_len - steps.position
            self._clipped += int(np.count_nonzero(emitted > left))
            acc[steps.position] = np.minimum(emitted, left)
            seen[steps.position] = steps.drafted + 1
            self._undrafted += int(np.count_nonzero(steps.drafted == 0))
            self._guessed += steps.guessed
        self._ids.append(request_id)
        self._prompt_len.append(prompt_len)
        self._acc.append(acc)
        self._seen.append(seen)

    def count_steps(self, accepted: Ints, drafted: Ints, asked: int = 0) -> None:
        """Pool a request's steps that verified drafts: (s,) accepted and (s,) drafted; ``asked``: its K."""
        self.count_histogram(np.bincount(accepted, minlength=1), int(drafted.sum()), asked)
        self._shown = max(self._shown, int(drafted.max(initial=0)))

    def count_histogram(self, steps: Ints, drafted: int | None, asked: int = 0) -> None:
        """Pool (k + 1,) steps by accepted drafts, and the drafts verified in all; ``asked`` 0: not told."""
        self._histogram[: len(steps)] += steps
        self._drafted = None if drafted is None or self._drafted is None else self._drafted + drafted
        self._shown = max(self._shown, int(np.max(np.flatnonzero(steps), initial=0)))
        self._asked = max(self._asked, asked)

    @property
    def lookup(self) -> bool:
        """Whether the proposer may have nothing to offer."""
        return self.proposer.startswith(LOOKUPS)

    @property
    def placed(self) -> int:
        """Requests whose steps stand at their places."""
        return len(self._ids) - self._unplaced

    def result(self, source: str) -> TraceSet | AcceptanceFigures:
        """The trace, or the figures where no request's steps could be placed (or figures were asked for).

        Raises:
            InputError: no row carried any acceptance.
        """
        if not self._ids:
            bound = f"none of {self.without} rows carries acceptance"
            raise InputError("recording", source, bound, "was speculation on, and its metrics asked for?")
        if self.options.figures or not self.placed:
            return self._figures(source)
        return self._traces(source)

    def _traces(self, source: str) -> TraceSet:
        offered = [np.maximum(row, 1) - np.uint8(1) for row in self._seen] if self.lookup else None
        everyone = np.ones(len(self._ids), np.bool_)
        trace = pack(self._acc, offered, everyone, self._recorded_k(), self._seen)
        known = sum(int(np.count_nonzero(row)) for row in self._seen)
        return TraceSet(
            request_id=request_names(self._ids, source),
            prompt_len=np.array(self._prompt_len, np.int32),
            proposers={self.proposer: trace},
            provenance=Provenance(Kind.MEASURED, source, "steps that a server took"),
            tokenizer=self.options.tokenizer,
            notes=(
                f"{known} of {len(trace.acc)} positions are known: those where a step stood",
                *self._notes(),
            ),
        )

    def _figures(self, source: str) -> AcceptanceFigures:
        k = self._recorded_k()
        steps = int(self._histogram.sum())
        if not steps:
            raise InputError("recording", source, "no step of it verified a draft", "record with K > 0")
        return AcceptanceFigures(
            proposer=self.proposer,
            kind=FiguresKind.HISTOGRAM,
            recorded_k=k,
            values=tuple(map(float, self._histogram[: k + 1])),
            steps=steps,
            requests=len(self._ids),
            drafted=self._drafted,
            provenance=Provenance(Kind.MEASURED, source, "steps pooled; their order and places are not kept"),
            notes=(
                *self._left_out(),
                *([] if self._asked else [f"K is taken to be {k}, the most that a step shows"]),
            ),
        )

    def _recorded_k(self) -> int:
        """K as it was told, or as the steps show it."""
        given = self.options.recorded_k
        most = max(self._asked, self._shown)
        if given is not None and most > given:
            raise InputError("--recorded-k", given, f"the recording has steps of {most} drafts")
        if not most:
            bound = "nothing in the recording tells the drafts of a step"
            raise InputError("--recorded-k", "nothing", bound, "give it")
        return most

    def _left_out(self) -> tuple[str, ...]:
        return (f"{self.without} rows carry no acceptance and were left out",) if self.without else ()

    def _notes(self) -> Iterator[str]:
        name = self.proposer
        yield from self._left_out()
        if self._unplaced:
            yield (
                f"{name}: the steps of {self._unplaced} of {len(self._ids)} requests could not be placed "
                "(steps without a draft are not listed, or chunks were merged): those requests are unknown"
            )
        if self._undrafted:
            yield f"{name}: {self._undrafted} steps had no draft (nothing to offer, or K = 0)"
        if self._guessed:
            yield (
                f"{name}: {self._guessed} steps without a draft stand among steps that accepted nothing; "
                "their counts are known, their order is not, and those with a draft were put first"
            )
        if self._clipped:
            yield f"{name}: {self._clipped} steps ran past the output's end and were clipped"
