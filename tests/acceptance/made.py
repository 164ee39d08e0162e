"""Traces and files made for tests, and plain-Python rules that share no code with the package."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace, TraceModel, TraceSet, cells
from kplan.provenance import Kind, Provenance

MADE = Provenance(Kind.ASSUMED, "made for a test")


def trace_of(rows: list[list[int]], recorded_k: int, drafted: list[list[int]] | None = None) -> ProposerTrace:
    lengths = [len(row) for row in rows]
    return ProposerTrace(
        output_len=np.array(lengths, np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        acc=np.array([a for row in rows for a in row], np.uint8),
        drafted=None if drafted is None else np.array([d for row in drafted for d in row], np.uint8),
        aligned=np.ones(len(rows), np.bool_),
        recorded_k=recorded_k,
    )


@st.composite
def traces(draw: st.DrawFn, lookup: bool | None = None, consistent: bool = False) -> ProposerTrace:
    """Any ragged trace; ``consistent``: a draft that was right stays right one position later."""
    recorded_k = draw(st.integers(1, 254))
    has_drafted = draw(st.booleans()) if lookup is None else lookup
    rows, offers = [], []
    for length in draw(st.lists(st.integers(1, 30), min_size=1, max_size=6)):
        row, offer = [1], [0]
        for i in range(1, length):
            low = max(1, row[-1] - 1) if consistent and i > 1 else 1
            high = min(recorded_k + 1, length - i)
            row.append(draw(st.integers(min(low, high), high)))
            offer.append(draw(st.integers(row[-1] - 1, recorded_k)))
        rows.append(row)
        offers.append(offer)
    return trace_of(rows, recorded_k, offers if has_drafted else None)


def set_of(trace: ProposerTrace, name: str = "made") -> TraceSet:
    n = len(trace.output_len)
    return TraceSet(
        request_id=np.array([f"r{i}" for i in range(n)], dtype=np.str_),
        prompt_len=np.arange(1, n + 1, dtype=np.int32),
        proposers={name: trace},
        provenance=MADE,
    )


def plain_walk(trace: ProposerTrace, k: int) -> tuple[int, int, int]:
    """(steps, tokens, drafted), straight from the definition."""
    steps = tokens = drafted = 0
    for r in range(len(trace.output_len)):
        acc = [int(a) for a in trace.acc[trace.offsets[r] : trace.offsets[r + 1]]]
        c = 1
        while c < len(acc):
            n = min(acc[c], k + 1, len(acc) - c)
            drafted += k if trace.drafted is None else min(k, int(trace.drafted[trace.offsets[r] + c]))
            steps, tokens, c = steps + 1, tokens + n, c + n
    return steps, tokens, drafted


def plain_ngram(text: list[int], lookup_min: int, lookup_max: int, k: int) -> list[int]:
    """The drafts for ``text``: longest n first, earliest occurrence, what follows it."""
    for n in range(lookup_max, lookup_min - 1, -1):
        tail = text[-n:]
        for start in range(len(text) - n):
            if len(tail) == n and text[start : start + n] == tail:
                return text[start + n : start + n + k]
    return []


def flat_model(hazard: list[float], stay: float = 1.0, classes: int = 1, known_k: int = 20) -> TraceModel:
    """A head whose drafts are accepted with chance ``hazard[state]`` at every depth, whatever came before."""
    regimes = len(hazard) // classes
    switch = np.full((classes, regimes, regimes), (1 - stay) / max(regimes - 1, 1))
    switch[:, np.arange(regimes), np.arange(regimes)] = stay if regimes > 1 else 1.0
    return TraceModel(
        proposer="made",
        recorded_k=20,
        known_k=known_k,
        length_edges=np.zeros(0),
        class_by_length=np.full((1, classes), 1 / classes),
        regime_start=np.full((classes, regimes), 1 / regimes),
        regime_switch=switch,
        hazard=np.repeat(np.array(hazard)[:, None], cells.CELLS, axis=1),
        lookup=None,
        provenance=MADE,
    )


def leviathan_length(alpha: float, k: int) -> float:
    """Tokens per step when every draft is accepted with chance alpha (Leviathan et al. 2023, eq. 1)."""
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def recording_row(**changes: Any) -> dict[str, Any]:
    """One line of a combined JSONL; ``changes`` replace keys, None takes one out."""
    row: dict[str, Any] = {
        "id": "7",
        "prompt_token_ids": [5, 6, 7, 8, 9],
        "generated_token_ids": [5, 6, 7, 8, 9, 1, 2, 3],
        "acc_eagle": {"acc_len": [1, 3, 2, 1, 2, 1, 1, 1]},
        "acc_ngram": {"acc_len": [1, 1, 1, 3, 2, 1, 1, 1]},
    }
    row.update(changes)
    return {key: value for key, value in row.items() if value is not None}


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def dump(row: dict[str, Any]) -> str:
    return json.dumps(row)


def steps_of(trace: ProposerTrace, k: int | NDArray[np.uint8]) -> ProposerTrace:
    """What a server that asks for ``k`` drafts (one K, or one for each position) shows of a trace."""
    asked = np.broadcast_to(np.asarray(k, np.uint8), trace.acc.shape)
    acc, seen = np.ones_like(trace.acc), np.zeros_like(trace.acc)
    for r in range(len(trace.output_len)):
        c, end, start = 1, int(trace.output_len[r]), int(trace.offsets[r])
        while c < end:
            at = start + c
            drafts = int(asked[at]) if trace.drafted is None else min(int(asked[at]), int(trace.drafted[at]))
            acc[at], seen[at] = min(int(trace.acc[at]), drafts + 1, end - c), drafts + 1
            c += int(acc[at])
    return replace(
        trace,
        acc=acc,
        drafted=None if trace.drafted is None else np.maximum(seen, 1) - np.uint8(1),
        recorded_k=int(asked.max()),
        seen=seen,
    )
