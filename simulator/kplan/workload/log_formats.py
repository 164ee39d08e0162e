"""Which column of a request log is what: the public logs by their headers, any other by ``--columns``.

A column's meaning is a **role**: ``t_s``, ``t_ms`` or ``datetime`` (the arrival; the role says its unit),
``input_tokens``, ``output_tokens``, ``session_id``, ``think_s`` or ``think_ms`` (pause before a turn),
``request_id`` with ``parent_id`` (the turn before), ``hash_ids_N`` (the prompt's units of N tokens each).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kplan.errors import InputError

HASH_IDS = re.compile(r"hash_ids_([1-9]\d{0,6})")
SECONDS = {"t_s": 1.0, "t_ms": 1e-3, "think_s": 1.0, "think_ms": 1e-3}
"""Seconds in one unit of a role that holds a time."""

_SAME = {"t_s": "arrival", "t_ms": "arrival", "datetime": "arrival", "think_s": "think", "think_ms": "think"}
_PLAIN = ("input_tokens", "output_tokens", "session_id", "request_id", "parent_id")
_ROLES = ", ".join((*_SAME, *_PLAIN, "hash_ids_N"))
_MAP = "name the columns: --columns t_s=NAME,input_tokens=NAME,output_tokens=NAME (t_ms or datetime for t_s)"


@dataclass(frozen=True)
class LogFormat:
    """A kind of log, known by its header.

    Attributes:
        name: whose log it is.
        needed, optional: role -> column.
        whole_ms: its arrivals are whole milliseconds, though the column's name does not say so.
    """

    name: str
    needed: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    whole_ms: bool = False


_LENGTHS = {"input_tokens": "input_length", "output_tokens": "output_length"}
_OWN = {role: role for role in ("input_tokens", "output_tokens")}
_OWN_SESSIONS = {role: role for role in ("session_id", "think_s")}
FORMATS = (
    LogFormat("kplan", {"t_s": "t_s", **_OWN}, _OWN_SESSIONS),
    LogFormat("kplan", {"t_ms": "t_ms", **_OWN}, _OWN_SESSIONS),
    # Azure/AzurePublicDataset, AzureLLMInferenceTrace_*.csv
    LogFormat(
        "Azure",
        {"datetime": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"},
    ),
    # alibaba-edu/qwen-bailian-usagetraces-anon, as aiperf's docs/tutorials/bailian-trace.md describes it:
    # seconds, 16 tokens a unit
    LogFormat(
        "Qwen-Bailian",
        {"t_s": "timestamp", **_LENGTHS, "request_id": "chat_id", "parent_id": "parent_chat_id"},
        {"hash_ids_16": "hash_ids"},
    ),
    # kvcache-ai/Mooncake, FAST25-release/traces: milliseconds, 512 tokens a unit; aiperf adds the sessions
    LogFormat(
        "Mooncake",
        {"t_ms": "timestamp", **_LENGTHS},
        {"hash_ids_512": "hash_ids", "session_id": "session_id", "think_ms": "delay"},
        whole_ms=True,
    ),
    # HPMLL/BurstGPT: seconds
    LogFormat(
        "BurstGPT",
        {"t_s": "Timestamp", "input_tokens": "Request tokens", "output_tokens": "Response tokens"},
    ),
    # microsoft/vidur, its request traces: seconds
    LogFormat(
        "Vidur",
        {"t_s": "arrived_at", "input_tokens": "num_prefill_tokens", "output_tokens": "num_decode_tokens"},
    ),
    LogFormat(
        "vllm bench serve",
        {"t_s": "start_times", "input_tokens": "input_lens", "output_tokens": "output_lens"},
    ),
)


@dataclass(frozen=True)
class Columns:
    """The columns of one log.

    Attributes:
        kind: name of its format.
        roles: role -> column.
        whole_ms: refuse arrivals that are not whole milliseconds: the unit is then in doubt.
    """

    kind: str
    roles: Mapping[str, str]
    whole_ms: bool

    def named(self, what: str) -> str | None:
        """The role for ``what`` (``arrival``, ``think``, ``hash_ids`` or a role itself), None without one."""
        return next((role for role in self.roles if _what(role) == what), None)


def find_columns(columns: Sequence[str], given: Mapping[str, str], file: str) -> Columns:
    """Match a file's columns to a format, those ``given`` (role -> column) taken as they are.

    Raises:
        InputError: an unknown role, a column that is not there, or columns that make no log.
    """
    taken: dict[str, str] = {}
    for role, column in given.items():
        what = _what(role)
        if what is None:
            raise InputError("--columns", f"{role}={column}", f"known are {_ROLES}", "mend the name before =")
        if what in taken:
            raise InputError("--columns", f"{taken[what]} and {role}", "both are the same", "give one")
        if column not in columns:
            has = f"it has {', '.join(columns)}"
            raise InputError(f"{file}, column {column}", "no such column", has[:300], "mend --columns")
        taken[what] = role
    for log in FORMATS:
        needed = {role: column for role, column in log.needed.items() if _what(role) not in taken}
        if set(needed.values()) <= set(columns):
            more = {role: column for role, column in log.optional.items() if column in columns}
            more |= {} if "hash_ids" in taken else _own_hashes(columns, log, file)
            kept = {role: column for role, column in more.items() if _what(role) not in taken}
            return Columns(log.name, needed | kept | dict(given), log.whole_ms and "arrival" not in taken)
    nearest = max(FORMATS, key=lambda log: len(set(log.needed.values()) & set(columns)))
    missing = [column for column in nearest.needed.values() if column not in columns]
    bound = f"no log of a kind that is known (of {nearest.name}'s columns {', '.join(missing)} is missing)"
    raise InputError(f"{file}, columns", ", ".join(columns)[:200], bound, _MAP)


def unit_tokens(role: str) -> int:
    """N of ``hash_ids_N``."""
    match = HASH_IDS.fullmatch(role)
    assert match is not None
    return int(match[1])


def _what(role: str) -> str | None:
    if HASH_IDS.fullmatch(role):
        return "hash_ids"
    return role if role in _PLAIN else _SAME.get(role)


def _own_hashes(columns: Sequence[str], log: LogFormat, file: str) -> dict[str, str]:
    found = [column for column in columns if HASH_IDS.fullmatch(column)] if log.name == "kplan" else []
    if len(found) > 1:
        fix = f"--columns {found[0]}={found[0]}"
        raise InputError(f"{file}, columns", " and ".join(found), "one is needed", f"choose: {fix}")
    return {column: column for column in found}
