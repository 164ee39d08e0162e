"""What answers add up to, and whether the server's counters say the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kplan.live.metrics import Window


@dataclass
class Tally:
    """Sums over rows of a recording.

    Attributes:
        requests, chunks: answers and their chunks.
        prompt_tokens, output_tokens: by the engine's count.
        told: requests whose engine told of their acceptance.
        listed: of these, those whose steps it listed.
        steps: steps that verified drafts, of these.
        drafted, accepted: drafts verified and accepted in these steps.
        accepted_at: depth from 0 -> steps that accepted the draft there.
        drafted_at: depth from 0 -> steps that verified a draft there; empty where steps are not listed.
        growth: decode chunks whose size tells their acceptance alone, by size (the last of a request, which
            the output's end may cut, left out).
    """

    requests: int = 0
    chunks: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    told: int = 0
    listed: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: Counter[int] = field(default_factory=Counter)
    drafted_at: Counter[int] = field(default_factory=Counter)
    growth: Counter[int] = field(default_factory=Counter)

    def add(self, row: Mapping[str, Any]) -> None:
        """Take a row in."""
        chunks = row["chunks"]
        self.requests += 1
        self.chunks += len(chunks)
        self.growth.update(chunks[1:-1])
        sglang = row.get("meta_info")
        usage = row["usage"] if sglang is None else sglang
        self.prompt_tokens += usage["prompt_tokens"]
        self.output_tokens += usage["completion_tokens"]
        if sglang is not None:
            self._add_histogram(sglang.get("spec_correct_drafts_histogram"))
            return
        told = (row.get("metrics") or {}).get("speculative_decoding")
        if told is None:
            return
        self.drafted += told["num_draft_tokens"]
        self._add_histogram(told.get("acceptance_histogram"))
        if told.get("per_step_drafted") is not None:
            for drafted in told["per_step_drafted"]:
                self.drafted_at.update(range(drafted))
        self.listed += told.get("per_step_drafted") is not None or not told["num_spec_steps"]

    def _add_histogram(self, histogram: list[int] | None) -> None:
        if histogram is None:
            return
        self.told += 1
        self.steps += sum(histogram)
        for kept, steps in enumerate(histogram):
            self.accepted += kept * steps
            for depth in range(kept):
                self.accepted_at[depth] += steps


@dataclass(frozen=True)
class Check:
    """One comparison of answers with counters.

    Attributes:
        name: what was compared.
        ok: whether it holds; None: it could not be made.
        words: why not, or what was compared.
    """

    name: str
    ok: bool | None
    words: str

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "ok": self.ok, "words": self.words}


_COUNTED = ("ttft_requests", "output_tokens", "emissions")


def check(tally: Tally, window: Window | None, broken: int, every_step_k: int | None = None) -> list[Check]:
    """Whether the server counted what was answered between two snapshots.

    Args:
        tally: of the answers in between.
        window: the counters in between; None where the server has none.
        broken: streams that broke off, for which the server counted an unknown amount.
        every_step_k: drafts that every decode step must have verified where chunks alone tell what it
            accepted; None: the engine tells it, and merged chunks hide no more than places.
    """
    if window is None:
        return [Check("counters", None, "the server shows no metrics: whether it served others is not known")]
    if broken:
        words = f"{broken} streams broke off: what the server counted for them is not known"
        return [Check("counters", None, words)]
    lacking = [figure for figure in _COUNTED if not window.has(figure)]
    if lacking:
        return [Check("counters", None, f"the server does not count {', '.join(lacking)}")]
    found = [_alone(tally, window)]
    if window.after.engine == "vllm":
        found.append(_chunks(tally, window, needed=every_step_k is not None))
        found += _acceptance(tally, window)
        if every_step_k is not None:
            found.append(_every_step(window, every_step_k))
    elif tally.told and window.has("drafts"):
        found.append(_same("verified steps", tally.steps, window.grown("drafts")))
    return found


def soundness(checks: list[Check]) -> bool | None:
    """False when a check failed, None when one could not be made, else True."""
    if any(one.ok is False for one in checks):
        return False
    return None if any(one.ok is None for one in checks) else True


def _every_step(window: Window, k: int) -> Check:
    steps, drafts = window.grown("emissions"), window.grown("drafts")
    drafted = window.grown("draft_tokens")
    words = (
        f"{steps:g} steps, {drafts:g} with a draft, {drafted:g} drafts; chunks tell a step of K = {k} alone"
    )
    return Check("every step drafts K", steps == drafts and drafted == k * drafts, words)


def _alone(tally: Tally, window: Window) -> Check:
    requests, tokens = window.grown("ttft_requests"), window.grown("output_tokens")
    if (requests, tokens) == (tally.requests, tally.output_tokens):
        return Check("alone", True, f"the server counted {tally.requests} requests, all of this run")
    words = (
        f"the server counted {requests:g} requests and {tokens:g} tokens, this run got {tally.requests} and "
        f"{tally.output_tokens}: another client was on it"
    )
    return Check("alone", False, words)


def _chunks(tally: Tally, window: Window, *, needed: bool) -> Check:
    emitted = window.grown("emissions") + tally.requests
    if emitted == tally.chunks:
        return Check("chunks", True, f"{tally.chunks} chunks, one a step")
    words = (
        f"{tally.chunks} chunks of {emitted:g} steps: a busy machine, a slow reader or a stream interval "
        "above 1 merged some"
    )
    if needed:
        return Check("chunks", False, f"{words}; run it again, with --concurrency 1 if that does not help")
    return Check("chunks", None, f"{words}; steps that cannot be placed stay unknown")


def _acceptance(tally: Tally, window: Window) -> list[Check]:
    if not tally.told or not window.has("drafts"):
        return []
    pairs = [
        ("verified steps", tally.steps, window.grown("drafts")),
        ("drafts", tally.drafted, window.grown("draft_tokens")),
        ("accepted", tally.accepted, window.grown("accepted_tokens")),
    ]
    pairs += [
        (f"accepted at position {depth + 1}", tally.accepted_at[depth], counted)
        for depth, counted in window.grown_by_position("accepted_per_position").items()
    ]
    wrong = [_same(*pair) for pair in pairs if pair[1] != pair[2]]
    return wrong or [
        Check("acceptance", True, f"{tally.steps} steps, {tally.accepted} of {tally.drafted} drafts")
    ]


def _same(name: str, told: int, counted: float) -> Check:
    words = f"the answers tell {told}, the counters {counted:g}"
    return Check(name, told == counted, words)
