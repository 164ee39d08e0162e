"""Read step logs: JSON Lines, one record per engine step.

A record of kplan's own schema has

    step_s              seconds of the step
    decode_requests     requests that decoded
    decode_tokens       their query tokens; or ``k``: drafts verified per request, so requests x (k + 1)
    kv_tokens           sum of their context lengths; or ``context``: the mean one
    prefill_requests, prefill_tokens      prompt chunks that rode along (0 when left out)
    prefill_kv_tokens   already computed and chunk tokens of those requests (prefill_tokens when left out)
    drafted_k           drafts proposed per request after the step (k when left out)
    proposer            null or left out for a server without speculation

Records of the plugin that ``kplan steplog install`` gives to vLLM are read as well: ``gap_ms`` (of two
figures the whole step; ``ms`` without it), ``gen_r``, ``gen_t``, ``ctx_r``, ``ctx_t``, and ``held`` (without
it ``kv``, the used share of a cache whose size must be given). A record whose only key is ``log`` gives
fields for all records after it, for example ``{"log": {"proposer": "ngram", "kv_capacity_tokens": 40208}}``.
Records without a step time, and steps without a token, are passed over.

Of a server's own log (vLLM with ``--enable-logging-iteration-details``) the lines ``Iteration(n): ...`` are
read. Their elapsed time is what the engine waited for its workers, without scheduling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypeGuard

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kplan.errors import InputError
from kplan.files import check_readable
from kplan.formats import KEY, STEP_LOG
from kplan.latency.fit_figures import file_source
from kplan.latency.observed import MOST_DRAFTS, Observation, shape_row

SECONDS_AT_MOST = 5.0
"""A median step longer than this is taken for milliseconds."""

MOST_BYTES = 2**30
"""Largest log that is read."""

_MOST_NUMBER = 1e100

_ITERATION = re.compile(
    r"Iteration\(\d{1,20}\): (?P<ctx_r>\d{1,20}) context requests, (?P<ctx_t>\d{1,20}) context tokens, "
    r"(?P<gen_r>\d{1,20}) generation requests, (?P<gen_t>\d{1,20}) generation tokens, "
    r"iteration elapsed time: (?P<ms>\d{1,20}(?:\.\d{1,20})?) ms, "
    r".{0,500}KV cache usage: (?P<kv_percent>\d{1,20}(?:\.\d{1,20})?)%",
    re.ASCII,
)
_CACHE_SIZE = re.compile(r"KV cache size: (\d[\d,]{0,30}) tokens", re.ASCII)
"""vLLM's words (LoggingStatLogger._log_iteration_details, and of the cache at start-up). All is bounded, so
that a line without end is searched in time that grows with its length alone."""

PLUGIN_NAMES = {
    "gen_r": "decode_requests",
    "gen_t": "decode_tokens",
    "ctx_r": "prefill_requests",
    "ctx_t": "prefill_tokens",
}

Count = Annotated[float, Field(ge=0, le=1e9)]
Drafts = Annotated[int, Field(ge=0, le=MOST_DRAFTS)]


class StepRecord(BaseModel):
    """One step; keys that say nothing of its cost are left alone, as every logger adds its own."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    step_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    decode_requests: Count
    decode_tokens: Count | None = None
    k: Drafts | None = None
    kv_tokens: Count | None = None
    context: Count | None = None
    prefill_requests: Count = 0
    prefill_tokens: Count = 0
    prefill_kv_tokens: Count | None = None
    drafted_k: Drafts | None = None
    proposer: str | None = None

    def observation(self, source: str, place: str) -> Observation:
        """Raises InputError when tokens or context cannot be had."""
        requests = self.decode_requests
        tokens = requests * (self.k + 1) if self.k is not None else self.decode_tokens
        kv = requests * self.context if self.context is not None else self.kv_tokens
        if tokens is None or kv is None:
            missing = "decode_tokens (or k)" if tokens is None else "kv_tokens (or context)"
            raise InputError(f"{place} of {source.split(',')[0]}", missing, "is missing", "log it")
        if tokens < requests:
            raise InputError(
                f"decode_tokens in {place}", tokens, f"every one of {requests:g} requests brings one"
            )
        if tokens > requests and self.proposer is None:
            raise InputError(
                f"decode_tokens in {place}",
                tokens,
                f"of {requests:g} requests, but no proposer is named",
                "log it",
            )
        drafted = self.drafted_k if self.proposer is not None else 0
        if drafted is None:
            drafted = round(tokens / requests) - 1 if requests and self.proposer is not None else 0
        prefill_kv = self.prefill_tokens if self.prefill_kv_tokens is None else self.prefill_kv_tokens
        chunk = self.prefill_tokens / self.prefill_requests if self.prefill_requests else 0.0
        computed = (
            (prefill_kv - self.prefill_tokens) / self.prefill_requests if self.prefill_requests else 0.0
        )
        row = shape_row(
            decode_requests=requests,
            decode_tokens=tokens,
            decode_kv_tokens=kv,
            decode_qk_tokens=kv * tokens / requests if requests else 0.0,
            prefill_requests=self.prefill_requests,
            prefill_tokens=self.prefill_tokens,
            prefill_kv_tokens=prefill_kv,
            prefill_qk_tokens=self.prefill_tokens * (computed + chunk / 2),
            sampled_rows=tokens + self.prefill_requests,
            draft_requests=requests + self.prefill_requests if drafted else 0.0,
            draft_k=drafted,
        )
        return Observation(source, place, self.proposer, drafted, self.step_s, np.array([row]), np.ones(1))


def read_steps(
    path: Path,
    *,
    begin: int = 0,
    end: int | None = None,
    proposer: str | None = None,
    source: str | None = None,
) -> list[Observation]:
    """The steps of a log.

    Args:
        begin, end: bytes between which records are taken; what the log says of itself before holds too.
        proposer: of records that do not say; null says that there is none.
        source: how figures name the log; None: by the file's name and digest.

    Raises:
        InputError: the log cannot be read or holds no step; names the line that is wrong.
    """
    text = _text(path, end)
    source = source or file_source(path)
    found: list[Observation] = []
    shared: dict[str, Any] = {"proposer": proposer}
    for place, fields in _with_drafted(_records(text, path.name, begin)):
        if set(fields) == {"log"} and isinstance(fields["log"], dict):
            STEP_LOG.check(fields["log"].get(KEY), path.name)
            shared = {"proposer": proposer} | fields["log"]
            continue
        fields = shared | _own_names(shared | fields)
        if "step_s" not in fields:
            continue
        try:
            record = StepRecord.model_validate(fields)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(
                f"{where} in {place} of {path.name}", first["input"], first["msg"], "mend the log"
            ) from None
        if record.decode_requests or record.prefill_tokens:
            found.append(record.observation(source, place))
    if not found:
        raise InputError(
            "--steps", path.name, "holds no step with a time", "log step_s or ms, see kplan calibrate --help"
        )
    middle = median(row.seconds for row in found)
    if middle > SECONDS_AT_MOST:
        raise InputError(
            f"median step_s of {path.name}", middle, "looks like milliseconds", "divide the column by 1000"
        )
    return found


def _records(text: str, name: str, begin: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, fields) of the records; before byte ``begin`` of those alone that begin a log."""
    own = text.lstrip()[:1] != "{" and "Iteration(" in text
    at = 0
    for number, line in enumerate(text.split("\n"), start=1):
        inside = at >= begin
        at += len(line.encode()) + 1
        place = f"line {number}"
        if own:
            if (told := _of_server_log(line)) is not None and (inside or "log" in told):
                yield place, told
        elif line.strip() and (inside or line.startswith('{"log"')):
            yield place, _fields(line, name, place)


def _text(path: Path, end: int | None) -> str:
    """The file up to byte ``end``. Raises InputError."""
    check_readable("--steps", path, MOST_BYTES)
    try:
        with path.open("rb") as file:
            return file.read(-1 if end is None else end).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("--steps", path.name, f"cannot be read ({error})", "check the path") from None


def _with_drafted(records: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same; a step of the plugin drafted what the step after it verifies.

    They differ where a table changes K: vLLM verifies at step t + 1 what the batch of step t made it draft.
    """
    place, held = "", None
    for place_of_next, following in records:
        if held is not None:
            requests, tokens = following.get("gen_r"), following.get("gen_t")
            if (
                requests
                and tokens
                and held.get("idx") is not None
                and following.get("idx") == held["idx"] + 1
            ):
                held = {"drafted_k": round(tokens / requests) - 1} | held
            yield place, held
        place, held = place_of_next, following
    if held is not None:
        yield place, held


def _of_server_log(line: str) -> dict[str, Any] | None:
    """The record of a line of a server's own log; None of a line that is none."""
    if size := _CACHE_SIZE.search(line):
        return {"log": {"kv_capacity_tokens": int(size[1].replace(",", ""))}}
    step = _ITERATION.search(line)
    if step is None:
        return None
    told = {key: float(value) for key, value in step.groupdict().items()}
    return told | {"kv": told.pop("kv_percent") / 100}


def _fields(line: str, name: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise InputError(
            f"{place} of {name}", line[:40], f"is not JSON ({why})", "the log may be cut off"
        ) from None
    if not isinstance(record, dict):
        raise InputError(f"{place} of {name}", line[:40], "must be a JSON object")
    return record


def _own_names(fields: dict[str, Any]) -> dict[str, Any]:
    """The record under kplan's names."""
    named = {PLUGIN_NAMES.get(key, key): value for key, value in fields.items()}
    ms = named.pop("ms", None)
    ms = named.pop("gap_ms", ms)  # null in a step that has none: then ms would tell a part of it
    if _is_number(ms):
        named["step_s"] = ms / 1e3
    if "kv_tokens" not in named and _is_number(named.get("held")):
        named["kv_tokens"] = named["held"]
    share, capacity = named.get("kv"), named.get("kv_capacity_tokens")
    if "kv_tokens" not in named and _is_number(share) and _is_number(capacity):
        named["kv_tokens"] = share * capacity
    return named


def _is_number(value: Any) -> TypeGuard[float]:
    """Whether it is one that can be reckoned with: JSON may hold integers that no float is as large as."""
    return isinstance(value, int | float) and abs(value) < _MOST_NUMBER
