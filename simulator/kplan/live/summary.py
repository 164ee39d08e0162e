"""Acceptance of a recording in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kplan.live.route import Route

if TYPE_CHECKING:
    from kplan.live.metrics import Window
    from kplan.live.record import Recorded
    from kplan.live.tally import Tally


def acceptance(found: Recorded) -> dict[str, Any] | None:
    """Tokens a step, share of drafts accepted, and by draft; None where nothing is known.

    ``tokens_per_step``: of all decode steps, those without a draft too; None where chunks may hold several.
    ``by_draft``: of ``steps`` that verified draft d, the share that accepted the drafts up to it.
    """
    if found.route is Route.NONE or not found.rows:
        return None
    tally, k = found.tally, found.speculation.k
    steps = tally.chunks - tally.requests if found.chunks_are_steps else 0
    tokens = (tally.output_tokens - tally.requests) / steps if steps else None
    if tally.told:
        return _shares(
            tokens, tally.steps, tally.drafted, tally.accepted, tally.accepted_at, _reached(tally, k)
        )
    if found.route is Route.TOTALS:
        return None if found.totals is None else _of_totals(found.totals, k)
    sizes = tally.growth
    counted = sum(sizes.values())
    if not counted:
        return None
    accepted = sum((size - 1) * n for size, n in sizes.items())
    kept = {depth: sum(n for size, n in sizes.items() if size - 1 > depth) for depth in range(k)}
    return _shares(tokens, counted, counted * k, accepted, kept, dict.fromkeys(range(k), counted))


def _reached(tally: Tally, k: int) -> Mapping[int, int]:
    """Steps that verified a draft at each depth; all of them where the engine does not list steps."""
    if tally.drafted_at:
        return tally.drafted_at
    return dict.fromkeys(range(k), tally.steps)


def _of_totals(window: Window, k: int) -> dict[str, Any] | None:
    if not window.has("draft_tokens"):
        return None
    by_depth = window.grown_by_position("accepted_per_position")
    kept = {depth: int(count) for depth, count in by_depth.items()}
    steps = int(window.grown("drafts"))
    drafted, accepted = int(window.grown("draft_tokens")), int(window.grown("accepted_tokens"))
    return _shares(None, steps, drafted, accepted, kept, dict.fromkeys(range(k), steps))


def _shares(
    tokens: float | None,
    steps: int,
    drafted: int,
    accepted: int,
    kept: Mapping[int, int],
    reached: Mapping[int, int],
) -> dict[str, Any]:
    return {
        "tokens_per_step": tokens,
        "verified_steps": steps,
        "accepted_per_verified_step": accepted / steps if steps else None,
        "accepted_per_draft": accepted / drafted if drafted else None,
        "by_draft": [
            {
                "draft": depth + 1,
                "steps": n,
                "accepted": kept.get(depth, 0),
                "marginal": kept.get(depth, 0) / n,
            }
            for depth, n in sorted(reached.items())
            if n
        ],
    }
