"""What an engine tells of one request's acceptance, held against itself before anything is made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

from kplan.acceptance.trace import MAX_K
from kplan.live.prompts import MOST_TOKENS

MOST_COUNT = 2**31 - 1
"""Largest count, and token id, that a server may tell."""
ACCEPTANCE = (
    "mean_acceptance_length",
    "draft_acceptance_rate",
    "acceptance_histogram",
    "num_spec_steps",
    "num_accepted_draft_tokens",
    "num_draft_tokens",
    "num_spec_tokens",
    "per_step_accepted",
    "per_step_drafted",
)
"""What vLLM's ``metrics.speculative_decoding`` tells."""


class StreamError(Exception):
    """An answer that cannot be used: the server said so, broke off, or contradicts itself."""


def check_told(words: Mapping[str, Any]) -> None:
    """Raise StreamError unless what an engine tells of a request's acceptance can be, and adds up.

    Args:
        words: with vLLM's ``metrics`` or SGLang's ``meta_info``.
    """
    sglang = words.get("meta_info")
    if isinstance(sglang, dict):
        _check_counts(sglang, "spec_correct_drafts_histogram", MOST_COUNT, MAX_K + 1)
    told = (words.get("metrics") or {}).get("speculative_decoding")
    if told is None:
        return
    if not isinstance(told, dict):
        raise StreamError(f"speculative_decoding is {str(told)[:40]}, and must be an object")
    for key in ("num_spec_steps", "num_draft_tokens"):
        count(told, key)
    for key in ("num_spec_tokens", "num_accepted_draft_tokens"):
        if told.get(key) is not None:
            count(told, key)
    _check_counts(told, "acceptance_histogram", MOST_COUNT, MAX_K + 1)
    for key in ("per_step_accepted", "per_step_drafted"):
        _check_counts(told, key, MAX_K, MOST_TOKENS)
    _check_sums(told)
    _check_steps(told)


def _check_sums(told: Mapping[str, Any]) -> None:
    """Steps and drafts by the histogram, by their own counts and by K."""
    histogram = told.get("acceptance_histogram")
    if histogram is None:
        return
    steps, accepted = sum(histogram), sum(depth * n for depth, n in enumerate(histogram))
    _same("num_spec_steps", told["num_spec_steps"], "acceptance_histogram", steps)
    if (own := told.get("num_accepted_draft_tokens")) is not None:
        _same("num_accepted_draft_tokens", own, "acceptance_histogram", accepted)
    drafts, k = told["num_draft_tokens"], told.get("num_spec_tokens")
    if accepted > drafts:
        raise StreamError(f"acceptance_histogram tells {accepted} accepted of {drafts} drafts")
    longest = max((depth for depth, n in enumerate(histogram) if n), default=0)
    if k is not None and (longest > k or drafts > k * steps):
        raise StreamError(
            f"{drafts} drafts in {steps} steps, {longest} of one accepted, and num_spec_tokens {k}"
        )


def _check_steps(told: Mapping[str, Any]) -> None:
    """The listed steps against their sums."""
    accepted, drafted = told.get("per_step_accepted"), told.get("per_step_drafted")
    if accepted is None or drafted is None:
        return
    _same("per_step_accepted", len(accepted), "per_step_drafted", len(drafted))
    _same("num_draft_tokens", told["num_draft_tokens"], "per_step_drafted", sum(drafted))
    for at, (kept, of) in enumerate(zip(accepted, drafted, strict=True), start=1):
        if kept > of:
            raise StreamError(f"step {at} accepted {kept} of {of} drafts")
    histogram = told.get("acceptance_histogram")
    shown = {depth: n for depth, n in enumerate(histogram or []) if n}
    if histogram is not None and Counter(accepted) != Counter(shown):
        raise StreamError("per_step_accepted and acceptance_histogram tell of other steps")


def _same(one: str, value: int, other: str, counted: int) -> None:
    if value != counted:
        raise StreamError(f"{one} tells {value} and {other} {counted}")


def is_count(value: Any, most: int = MOST_COUNT) -> TypeGuard[int]:
    """Whether it is a whole number in 0..most."""
    return type(value) is int and 0 <= value <= most


def count(told: Mapping[str, Any], key: str) -> int:
    """The count of this name. Raises StreamError where it is none."""
    value = told.get(key)
    if not is_count(value):
        raise StreamError(f"{key} is {str(value)[:40]}, and must be a count")
    return value


def _check_counts(told: Mapping[str, Any], key: str, most: int, longest: int) -> None:
    """Raise StreamError unless there is nothing, or a list of at most ``longest`` counts up to ``most``."""
    values = told.get(key)
    if values is None:
        return
    if not isinstance(values, list) or len(values) > longest or not all(is_count(v, most) for v in values):
        raise StreamError(f"{key} is {str(values)[:40]}, and must be a list of counts up to {most}")
