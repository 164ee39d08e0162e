"""Request logs: when requests came, how long they were, what they share, and which wait for which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kplan.acceptance.columns import Row
from kplan.acceptance.trace import MAX_TOKENS
from kplan.errors import InputError
from kplan.provenance import Kind, Provenance
from kplan.workload.log_file import LogFile, open_log
from kplan.workload.log_formats import SECONDS, Columns, find_columns, unit_tokens
from kplan.workload.log_values import datetimes, numbers, texts, unit_lists
from kplan.workload.sessions import follow_parent, follow_session, shared_history

MAX_CLOCK = 1e15
"""Largest reading of a log's clock in its own unit: any date in milliseconds, none in nanoseconds."""


@dataclass(frozen=True)
class Prefix:
    """Stretches of tokens that requests share, for a prefix cache. Only whole units are listed.

    Attributes:
        unit_tokens: tokens of a unit.
        ids: (m,) int32, dense: 0 and up in order of first appearance; one id, one text from the beginning on.
        offsets: (n + 1,) int64; request i begins with the units ``ids[offsets[i]:offsets[i + 1]]``, each
            covering the next ``unit_tokens`` tokens of its prompt and then of its output.
    """

    unit_tokens: int
    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]

    def first(self, n: int) -> Prefix:
        """That of the first ``n`` requests."""
        return replace(self, ids=self.ids[: self.offsets[n]], offsets=self.offsets[: n + 1])


@dataclass(frozen=True)
class RequestLog:
    """Requests in order of arrival.

    Attributes:
        t_s: (n,) float64 sorted arrival times; the first is 0.
        prompt_len, output_len: (n,) int64 tokens, >= 1.
        follows: (n,) int64 index of the request whose end this one waits for (the turn before in its
            session), always a lower one; -1 none. A turn arrives at the later of its ``t_s`` and that end
            plus ``think_s``. None: no sessions.
        think_s: (n,) float64 pause after that end; None: no pause.
        prefix: None when the log does not say what its prompts share.
        provenance: the file, and whose format it is in.
        notes: what was dropped or changed, with counts.
    """

    t_s: NDArray[np.float64]
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]
    follows: NDArray[np.int64] | None
    think_s: NDArray[np.float64] | None
    prefix: Prefix | None
    provenance: Provenance
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.t_s)

    @property
    def mean_qps(self) -> float:
        """Requests per second, from the first to the last; infinite when all come at once."""
        return (len(self) - 1) / float(self.t_s[-1]) if self.t_s[-1] > 0 else np.inf

    def first(self, n: int) -> RequestLog:
        """The first ``n`` requests.

        Raises:
            InputError: n < 1, or more than there are.
        """
        if not 1 <= n <= len(self):
            raise InputError("requests", n, f"the log has {len(self)}", "leave it out for all of them")
        return replace(
            self,
            t_s=self.t_s[:n],
            prompt_len=self.prompt_len[:n],
            output_len=self.output_len[:n],
            follows=None if self.follows is None else self.follows[:n],
            think_s=None if self.think_s is None else self.think_s[:n],
            prefix=None if self.prefix is None else self.prefix.first(n),
        )

    def at_rate(self, qps: float) -> RequestLog:
        """The same requests with time stretched so that ``mean_qps`` is ``qps``; pauses are left as they are.

        Raises:
            InputError: qps not positive and finite, or requests that all come at once.
        """
        if not (np.isfinite(qps) and qps > 0):
            raise InputError("rate", qps, "a positive number is needed")
        if np.isinf(self.mean_qps):
            raise InputError("rate", qps, "the log's requests all come at once", "leave the rate out")
        return replace(self, t_s=self.t_s * (self.mean_qps / qps))


def load_log(path: Path, columns: Mapping[str, str] | None = None) -> RequestLog:
    """Read a log of requests from CSV, JSONL (either may be gzipped) or parquet.

    Headers of kplan, Azure, Mooncake, Qwen-Bailian, BurstGPT, Vidur and the result of ``vllm bench serve
    --save-detailed`` are known (:mod:`kplan.workload.log_formats`). Rows are put in order of arrival;
    requests without output are dropped, for a server emits at least one token. A log's hash ids are those of
    its prompts: ids beyond the last whole unit of a prompt are dropped. What was generated before a turn then
    counts as unseen, so hits counted from them are a lower bound.

    Args:
        columns: role -> column, for columns that no known header names.

    Raises:
        InputError: one line with file, row (from 1, below any header) and column.
    """
    file = open_log(Path(path))
    found = find_columns(file.columns, columns or {}, file.name)
    table = file.read(list(dict.fromkeys(found.roles.values())))
    if table.num_rows == 0:
        raise InputError(file.name, "no request", "at least one is needed")
    t_s = _arrivals(table, found, file.name)
    prompt, output = (
        numbers(
            table, found.roles[role], file.name, f"a whole number of {low} to {MAX_TOKENS} tokens is needed",
            low=low, high=MAX_TOKENS, whole=True,
        ).astype(np.int64)
        for role, low in (("input_tokens", 1), ("output_tokens", 0))
    )  # fmt: skip
    notes = []
    late = int(np.count_nonzero(np.diff(t_s) < 0))
    if late:
        notes.append(f"{late} rows came before the row above them: sorted by time")
    kept = np.argsort(t_s, kind="stable")
    kept = kept[output[kept] > 0]
    if len(kept) < len(t_s):
        notes.append(f"{len(t_s) - len(kept)} of {len(t_s)} requests have no output and were dropped")
    if not len(kept):
        raise InputError(file.name, "no request with output", "at least one is needed")
    follows = _follows(table, found, kept, file.name, notes)
    prefix = _prefix(table, found, prompt, kept, file, notes)
    return RequestLog(
        t_s=t_s[kept] - t_s[kept[0]],
        prompt_len=prompt[kept],
        output_len=output[kept],
        follows=follows,
        think_s=_pauses(table, found, kept, file.name) if follows is not None else None,
        prefix=prefix,
        provenance=Provenance(Kind.MEASURED, file.name, f"read as {found.kind}'s log, {_clock(found)}"),
        notes=tuple(notes),
    )


def session_prefix(log: RequestLog, unit_tokens: int) -> Prefix:
    """What the turns of a session share, of a log that does not say: all of the history. Assumed, not logged.

    A turn begins with the prompt and the output of the turn before, as far as its own prompt is long; nothing
    else is shared, not even between sessions. A client that edits or trims its history shares less.

    Raises:
        InputError: the log has no sessions, or unit_tokens < 1.
    """
    if unit_tokens < 1:
        raise InputError("unit tokens", unit_tokens, "at least 1 is needed")
    if log.follows is None:
        raise InputError("request log", log.provenance.source, "has no sessions", "--columns session_id=NAME")
    ids, offsets = shared_history(log.prompt_len, log.output_len, log.follows, unit_tokens)
    return Prefix(unit_tokens, ids, offsets)


def _clock(found: Columns) -> str:
    """How the arrivals were read: a log's unit is often not written in it."""
    role = found.named("arrival")
    assert role is not None
    unit = {"t_s": "seconds", "t_ms": "milliseconds", "datetime": "dates"}[role]
    return f"{found.roles[role]} in {unit}"


def _arrivals(table: pa.Table, found: Columns, file: str) -> NDArray[np.float64]:
    """(n,) seconds on the log's own clock, in the file's order."""
    role = found.named("arrival")
    assert role is not None
    column = found.roles[role]
    if role == "datetime":
        return datetimes(table, column, file)
    bound = f"a number from {-MAX_CLOCK:g} to {MAX_CLOCK:g} is needed ({role})"
    fix = (
        ""
        if column == role
        else f"or say the unit: --columns t_s={column}, t_ms={column} or datetime={column}"
    )
    if found.whole_ms:
        bound = f"{found.kind}'s are whole milliseconds"
    clock = numbers(table, column, file, bound, low=-MAX_CLOCK, high=MAX_CLOCK, whole=found.whole_ms, fix=fix)
    return np.asarray((clock - clock.min()) * SECONDS[role])


def _follows(
    table: pa.Table, found: Columns, kept: NDArray[np.int64], file: str, notes: list[str]
) -> NDArray[np.int64] | None:
    """(n,) as :attr:`RequestLog.follows`."""
    roles = found.roles
    if "session_id" in roles:
        return follow_session(texts(table, roles["session_id"], file).take(pa.array(kept)))
    if ("request_id" in roles) != ("parent_id" in roles):
        raise InputError(
            "--columns", "request_id or parent_id alone", "both are needed", "give the other too"
        )
    if "request_id" not in roles:
        return None
    request, parent = (
        texts(table, roles[role], file).take(pa.array(kept)) for role in ("request_id", "parent_id")
    )
    follows, lost = follow_parent(request, parent, kept, roles["request_id"], file)
    if lost:
        notes.append(f"{lost} requests name a parent that is not before them: each starts a session")
    return follows


def _pauses(
    table: pa.Table, found: Columns, kept: NDArray[np.int64], file: str
) -> NDArray[np.float64] | None:
    """(n,) as :attr:`RequestLog.think_s`; a pause that is not given is none."""
    role = found.named("think")
    if role is None:
        return None
    pauses = numbers(
        table, found.roles[role], file, f"a number >= 0 is needed ({role})", low=0.0, missing=0.0
    )
    return np.asarray(pauses[kept] * SECONDS[role])


def _prefix(
    table: pa.Table,
    found: Columns,
    prompt: NDArray[np.int64],
    kept: NDArray[np.int64],
    file: LogFile,
    notes: list[str],
) -> Prefix | None:
    """Whole units of the prompts of the rows ``kept``."""
    role = found.named("hash_ids")
    if role is None:
        return None
    unit, column = unit_tokens(role), found.roles[role]
    offsets, flat = unit_lists(table, column, file.name)
    counts = np.diff(offsets)
    over = counts > -(-prompt // unit)
    if over.any():
        at = int(np.argmax(over))
        raise InputError(
            Row(file.name, at + 1).at(column), f"{counts[at]} ids",
            f"its prompt of {prompt[at]} tokens has {-(-prompt[at] // unit)} units of {unit}",
            f"say the unit: --columns hash_ids_N={column}",
        )  # fmt: skip
    whole = np.minimum(counts[kept], prompt[kept] // unit)
    partial = int((counts[kept] - whole).sum())
    if partial:
        notes.append(f"{partial} hash ids of the unfilled last unit of a prompt were dropped")
    starts = np.concatenate([[0], np.cumsum(whole)]).astype(np.int64)
    at_units = np.repeat(offsets[kept] - starts[:-1], whole) + np.arange(starts[-1])
    encoded = flat.take(pa.array(at_units)).dictionary_encode()
    return Prefix(unit, np.array(encoded.indices, np.int32), starts)
