"""What vLLM 0.32.0 makes of ``speculative-config``: its keys, its methods, and how it reads a batch table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kplan.export.current import MAX_BATCH, Severity, short, whole_number
from kplan.export.table import KRange, compress

SPECULATIVE_KEYS = frozenset(
    (
        *("enforce_eager", "num_speculative_tokens", "model", "method", "draft_tensor_parallel_size"),
        *("quantization", "moe_backend", "attention_backend", "kv_cache_dtype", "max_model_len"),
        *("revision", "code_revision", "index_share_for_mtp_iteration", "disable_padded_drafter_batch"),
        *("disable_eagle_block_drop", "use_local_argmax_reduction", "use_heterogeneous_vocab"),
        *("prompt_lookup_max", "prompt_lookup_min", "parallel_drafting", "draft_load_config"),
        *("num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth"),
        *("suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor"),
        *("suffix_decoding_min_token_prob", "rejection_sample_method", "synthetic_acceptance_rates"),
        *("synthetic_acceptance_length", "enable_adaptive_verification", "draft_sample_method"),
        "dspark_draft_topk",
    )
)
"""Fields of its SpeculativeConfig that a user sets; any other key is refused."""

SYNCHRONOUS = frozenset({"ngram", "suffix", "medusa", "custom_class"})
"""Methods with which it refuses ``async-scheduling: true``."""

PROPOSERS = {
    "ngram": "ngram",
    "suffix": "suffix",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "mtp": "mtp",
    "draft_model": "draft-model",
}
"""Method -> kplan's proposer, of those that it can price."""

WITHOUT_WEIGHTS = frozenset({"ngram", "ngram_gpu", "suffix", "mtp", "dspark", "extract_hidden_states"})
"""Methods that need no ``model``."""

SUFFIX_DEPTH = 24
"""K of suffix decoding where none is given (``suffix_decoding_max_tree_depth``)."""

_PARTS = 3


def method_named(given: Any, model: str | None) -> str:
    """The method in force: the one given, or what vLLM takes from the name of the drafter's weights."""
    if isinstance(given, str):
        return "mtp" if given.endswith("_mtp") else given
    name = (model or "").lower()
    if model in ("ngram", "[ngram]"):
        return "ngram"
    parts = (model or "").split(".")
    if "/" not in name and len(parts) > 1 and all(part.isidentifier() for part in parts):
        return "custom_class"
    if "eagle-" in name:
        return "eagle"
    return next((method for method in ("eagle3", "dflash", "dspark") if method in name), "draft_model")


def read_table(
    given: Any, seats: int, static_k: int
) -> tuple[tuple[KRange, ...] | None, list[tuple[Severity, str]]]:
    """(the table as it runs for batches 1..seats, what is said of it); None where none is in force.

    Args:
        given: value of ``num_speculative_tokens_per_batch_size``.
        seats: max_num_seqs.
        static_k: num_speculative_tokens.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        return None, [(Severity.REFUSED, f"the table by batch size must be a list, not {short(given)}")]
    if not given:
        return None, [(Severity.NOTE, "an empty table by batch size is no table: K is the static one")]
    rows = []
    for row in given:
        numbers = [whole_number(value) for value in row] if isinstance(row, list) else []
        if len(numbers) != _PARTS or None in numbers:
            return None, [
                (Severity.REFUSED, f"the table row {short(row)} must be [from, to, K], whole numbers")
            ]
        rows.append(tuple(number for number in numbers if number is not None))
    if fault := _fault(sorted(rows)):
        return None, [(Severity.REFUSED, f"{fault}; the parser takes it, and the engine stops as it starts")]
    said = []
    if sorted(rows) != rows:
        said.append((Severity.CHANGED, "the rows of the table are sorted by batch size"))
    rows = sorted(rows)
    for (_, end, k), (start, _, _) in pairwise(rows):
        if start > end + 1:
            said.append((Severity.CHANGED, f"batches {end + 1}..{start - 1} are in no row and keep K = {k}"))
    if rows[-1][1] < seats:
        last = rows[-1]
        said.append((Severity.NOTE, f"batches above {last[1]} keep the last K, {min(last[2], static_k)}"))
    said += [
        (
            Severity.CHANGED,
            f"K = {k} of batches {start}..{end} is clamped to num_speculative_tokens {static_k}",
        )
        for start, end, k in rows
        if k > static_k
    ]
    said += [
        (Severity.NOTE, f"row {start}..{end} is above max-num-seqs {seats} and never used")
        for start, end, _ in rows
        if start > seats
    ]
    ks = np.zeros(min(seats, MAX_BATCH) + 1, np.int64)
    for start, _, k in rows:
        ks[start:] = min(k, static_k)
    return compress(ks), said


def _fault(rows: list[tuple[int, ...]]) -> str:
    """Why the expansion of a sorted table fails, "" when it does not."""
    for start, end, k in rows:
        if start < 1 or end < start:
            return f"the table row {start}..{end} must be positive and ascend"
        if k < 0:
            return f"K = {k} of the table must be >= 0"
    if rows[0][0] != 1:
        return f"the first row of the table starts at {rows[0][0]}, and must at 1"
    for (_, end, _), (start, _, _) in pairwise(rows):
        if start <= end:
            return f"rows of the table overlap at batch {start}"
    return ""
