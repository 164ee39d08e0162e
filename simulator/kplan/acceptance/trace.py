"""Acceptance traces: what a verification would have emitted at every output position.

Trace arrays are columnar and ragged: request ``r`` owns ``acc[offsets[r]:offsets[r + 1]]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kplan.errors import InputError
from kplan.provenance import Provenance

MAX_K = 254
"""Largest draft length that a uint8 trace can hold (accepted + bonus <= 255)."""
MAX_TOKENS = 10_000_000
"""Longest prompt and longest output that are believed; a trace holds every position of an output."""


@dataclass(frozen=True)
class ProposerTrace:
    """One proposer's acceptance over ``n`` requests.

    Attributes:
        output_len: (n,) int32, tokens that the request emits in all, >= 1. It may differ between proposers
            of one recording (greedy ties); only rows whose ``aligned`` is set may be used jointly.
        offsets: (n + 1,) int64 into the flat arrays; row r has output_len[r] positions.
        acc: flat uint8; ``acc[i]`` = tokens emitted (bonus included, so >= 1) by a step verified when ``i``
            output tokens exist, if ``recorded_k`` tokens are drafted. ``acc[0]`` is the prefill: always 1.
            A step with K <= recorded_k emits exactly ``min(acc[i], K + 1)``, and never past the output.
        drafted: flat uint8 or None; tokens the proposer has to offer at that position (n-gram: 0 = no match,
            nothing is drafted or verified). None means it always offers the K it is asked for.
        aligned: (n,) bool, the row belongs to the same generation as the request's token ids and other
            aligned proposers.
        recorded_k: K of the recording; it censors the trace: acc == recorded_k + 1 means "at least".
        seen: flat uint8 like acc, or None. 0 = nothing is known at this position (acc holds 1 there), else
            1 + the drafts that were verified there; acc == seen then means "at least". The prefill's is 0.
            None: every position was verified with recorded_k drafts (or ``drafted`` of them).
    """

    output_len: NDArray[np.int32]
    offsets: NDArray[np.int64]
    acc: NDArray[np.uint8]
    drafted: NDArray[np.uint8] | None
    aligned: NDArray[np.bool_]
    recorded_k: int
    seen: NDArray[np.uint8] | None = None


def need_every_position(trace: ProposerTrace, what: str) -> None:
    """Raise InputError for a trace of which only the steps of a server are known: ``what`` needs more."""
    if trace.seen is not None:
        known = f"{np.count_nonzero(trace.seen)} of {len(trace.seen)} positions known"
        fix = "fit a model with kplan traces fit, and give that"
        raise InputError("trace", known, f"{what} needs every position", fix)


@dataclass(frozen=True)
class TraceSet:
    """Requests with the acceptance of one or several proposers.

    Attributes:
        request_id: (n,) names of the requests.
        prompt_len: (n,) int32, >= 1.
        proposers: proposer name -> its trace over the same n requests.
        provenance: where the traces come from.
        tokenizer: name of the tokenizer that counted the tokens, "" when unknown.
        notes: what an importer clipped, dropped or could not know, with counts.
        loopy: (n,) bool, the output degenerates into repetition (greedy decoding without a penalty), which
            inflates every lookup proposer; None when the source cannot tell. Fits leave these rows out.
    """

    request_id: NDArray[np.str_]
    prompt_len: NDArray[np.int32]
    proposers: Mapping[str, ProposerTrace]
    provenance: Provenance
    tokenizer: str = ""
    notes: tuple[str, ...] = ()
    loopy: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.prompt_len)
