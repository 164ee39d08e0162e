"""The file of a recording: a row an answer, whole lines only, so that it can be gone on with after any end.

Beside ``NAME.jsonl`` stands ``NAME.jsonl.meta.json``: who served it, with what settings, and for each run
that added rows whether the server's counters agreed. The same settings go on where the last run stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kplan.acceptance.columns import Row
from kplan.acceptance.jsonl import MAX_LINE_BYTES, parse
from kplan.errors import InputError
from kplan.files import replacing, telling, write_text
from kplan.formats import KEY, RECORDING
from kplan.live.generate import Answer
from kplan.live.tally import Check
from kplan.live.told import StreamError, check_told
from kplan.locks import alone

MOST_BYTES = 2**33
"""Largest recording."""


@dataclass
class Recording:
    """Rows on disk and what is known of them; made by :func:`open_recording`.

    Attributes:
        path: the JSONL.
        settings: what every run of it must share.
        runs: one record a run, in order; the last one's is open until :meth:`close_run`.
        rows: index of the prompt -> the run that answered it.
    """

    path: Path
    settings: Mapping[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    rows: dict[int, int] = field(default_factory=dict)
    _bytes: int = 0

    def begin_run(self, about: Mapping[str, Any]) -> None:
        """Note that a run begins, before its first row."""
        self.runs.append({**about, "closed": False})
        self._save()

    def close_run(self, about: Mapping[str, Any]) -> None:
        """Note how the run ended."""
        self.runs[-1] |= {**about, "closed": True}
        self._save()

    def append(self, index: int, row: Mapping[str, Any]) -> None:
        """Add a row for good: it is on disk when this returns.

        Raises:
            InputError: the file would grow too large, or cannot be written.
        """
        run = len(self.runs) - 1
        line = json.dumps({"index": index, "run": run, **row}, separators=(",", ":")).encode() + b"\n"
        if self._bytes + len(line) > MOST_BYTES:
            raise InputError(
                "--out", str(self.path), f"{MOST_BYTES:,} bytes are written at most", "record fewer"
            )
        with telling("--out", self.path):
            try:
                with self.path.open("ab") as sink:
                    sink.write(line)
                    sink.flush()
                    os.fsync(sink.fileno())
            except OSError:
                with suppress(OSError):  # a part of a line may be there; the next run would drop it too
                    os.truncate(self.path, self._bytes)
                raise
        self._bytes += len(line)
        self.rows[index] = run

    def drop_run(self, run: int) -> None:
        """Take the rows of a run out of the file."""
        self._rewrite(line for line, record in _whole_lines(self.path) if record["run"] != run)
        self.rows = {index: of for index, of in self.rows.items() if of != run}

    def sort(self) -> None:
        """Put the rows in the order of the prompts, whatever order they were answered in."""
        lines = {record["index"]: line for line, record in _whole_lines(self.path)}
        self._rewrite(lines[index] for index in sorted(lines))

    def read(self) -> Iterator[dict[str, Any]]:
        """The rows, one in memory at a time."""
        return (record for _, record in _whole_lines(self.path))

    def soundness(self, run: int) -> bool | None:
        """Whether a run agreed with the server's counters; None where that is not known."""
        found = self.runs[run].get("sound")
        return found if isinstance(found, bool) else None

    @property
    def sound(self) -> bool | None:
        """False when a run with rows was contradicted, None when one is not known."""
        found = [self.soundness(run) for run in set(self.rows.values())]
        if any(one is False for one in found):
            return False
        return None if any(one is None for one in found) else True

    def passed(self, check: str) -> bool:
        """Whether every run with rows passed the check of this name."""
        runs = [self.runs[run] for run in set(self.rows.values())]
        return all(
            any(one["name"] == check and one["ok"] is True for one in run.get("checks", [])) for run in runs
        )

    def _rewrite(self, lines: Iterator[bytes]) -> None:
        with replacing(self.path) as sink:
            for line in lines:
                sink.write(line)
        self._bytes = self.path.stat().st_size

    def _save(self) -> None:
        record = {KEY: RECORDING.version, "settings": dict(self.settings), "runs": self.runs}
        write_text(json.dumps(record, indent=1) + "\n", sidecar(self.path))


def row_of(answer: Answer) -> dict[str, Any]:
    """An answer in the form that kplan traces import and replay read."""
    return {
        **answer.told,
        "id": f"prompt {answer.prompt.index + 1}",
        "chunks": list(answer.chunks),
        "prompt_token_ids": list(answer.prompt_token_ids),
        "output_token_ids": list(answer.token_ids),
        "finish_reason": answer.finish_reason,
        "sent_s": round(answer.sent_s, 6),
        "chunk_s": [round(at_s, 6) for at_s in answer.chunk_s],
    }


def sidecar(path: Path) -> Path:
    """Where the settings and runs of a recording stand."""
    return path.with_name(path.name + ".meta.json")


@contextmanager
def open_recording(path: Path, settings: Mapping[str, Any], *, restart: bool = False) -> Iterator[Recording]:
    """A new recording, or the one that is there, if it has these settings; a cut last line is dropped.

    No other process can open it meanwhile.

    Args:
        restart: begin anew, and remove the recording that is there.

    Raises:
        InputError: what is there has other settings, is no recording, or is being recorded.
    """
    with alone("--out", path):
        if restart:
            _refuse_foreign(path)
            with telling("--out", path, "be removed"):
                path.unlink(missing_ok=True)
                sidecar(path).unlink(missing_ok=True)
        yield _opened(path, settings)


def _refuse_foreign(path: Path) -> None:
    """Raise InputError where what stands at a recording's place was not written by this command.

    A row of ours or a sidecar of ours is enough: either may be what was damaged.
    """
    rows = path if path.exists() and path.stat().st_size else None
    beside = sidecar(path)
    if rows is None and not beside.exists():
        return
    with suppress(InputError):
        _read_sidecar(path)
        return
    with suppress(InputError):
        if rows is not None and next(_whole_lines(rows), None) is not None:
            return
    found = rows or beside
    bound = "is no recording of this command, and is not removed"
    raise InputError("--out", str(found), bound, "name another file, or remove it yourself")


def _opened(path: Path, settings: Mapping[str, Any]) -> Recording:
    fix = "name another file, or begin anew with --restart"
    if not sidecar(path).exists():
        if path.exists() and path.stat().st_size:
            raise InputError("--out", str(path), "is no recording of this command", fix)
        return Recording(path, settings)
    kept, runs = _read_sidecar(path)
    for key in [*settings, *kept]:
        if settings.get(key) != kept.get(key):
            bound = f"was recorded with {key} {_shown(kept.get(key))}, not {_shown(settings.get(key))}"
            raise InputError("--out", str(path), bound, fix)
    recording = Recording(path, settings, runs)
    if path.exists():
        _cut_last_line(path)
        recording.rows = {record["index"]: record["run"] for record in recording.read()}
        if any(run >= len(runs) for run in recording.rows.values()):
            raise InputError("--out", str(sidecar(path)), "does not list every run that has rows", fix)
        recording._bytes = path.stat().st_size
    return recording


def _shown(value: Any) -> str:
    return json.dumps(value)[:60]


def _read_sidecar(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    beside = sidecar(path)
    try:
        record = json.loads(beside.read_bytes())
        RECORDING.check(record[KEY], beside.name)
        return dict(record["settings"]), [_run(run) for run in record["runs"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        bound = f"cannot be read ({str(error)[:60]})"
        raise InputError("--out", str(beside), bound, "begin anew with --restart") from None


def _run(record: dict[str, Any]) -> dict[str, Any]:
    """A run as :meth:`Recording.close_run` left it. Raises TypeError, KeyError of anything else."""
    checks = [Check(one["name"], one["ok"], one["words"]).record() for one in record.get("checks", [])]
    return {**record, "checks": checks}


def _cut_last_line(path: Path) -> None:
    """Drop what stands after the last line end: a row that was being written when the power went."""
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        at = end
        while at > 0:
            start = max(0, at - 65536)
            file.seek(start)
            found = file.read(at - start).rfind(b"\n")
            if found >= 0:
                at = start + found + 1
                break
            at = start
        if at != end:
            file.truncate(at)


def _whole_lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Lines with their objects. Raises InputError for a line that is none of ours."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
            where = Row(path.name, number)
            record = parse(line, where)
            if not _is_row(record):
                raise InputError(
                    where.at("index"), line[:40].decode(), "a row of kplan record is needed",
                    "begin anew with --restart",
                )  # fmt: skip
            yield line, record


def _is_row(record: Mapping[str, Any]) -> bool:
    """Whether an object is as :func:`row_of` makes them, with the counts that are summed."""
    try:
        check_told(record)
    except StreamError:
        return False
    told = record.get("meta_info", record.get("usage"))
    counts = [record.get("index"), record.get("run"), *(record.get("chunks") or ["none"])]
    counts += (
        [told.get(key) for key in ("prompt_tokens", "completion_tokens")] if isinstance(told, dict) else [""]
    )
    return all(type(count) is int and count >= 0 for count in counts)
