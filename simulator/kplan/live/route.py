"""By what route a server's acceptance can be recorded, and what it would take to have a better one.

1. ``steps``: vLLM lists what each step drafted and accepted.
2. ``growth``: each chunk is one step, its size what was accepted and one; K must be the same in every step.
3. ``totals``: the counters of the whole server alone.
4. ``none``: without speculation; token ids and lengths are recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kplan.acceptance.collect import LOOKUPS
from kplan.errors import InputError
from kplan.live.metrics import Snapshot
from kplan.live.server import Server, ServerInfo

_SGLANG_NAMES = {
    "EAGLE": "eagle",
    "NEXTN": "mtp",
    "EAGLE3": "eagle3",
    "STANDALONE": "draft-model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
}


class Route(StrEnum):
    """See the module's text."""

    STEPS = "steps"
    GROWTH = "growth"
    TOTALS = "totals"
    NONE = "none"


ROUTE_WORDS: Mapping[Route, str] = {
    Route.STEPS: "the server lists what each step drafted and accepted",
    Route.GROWTH: "one chunk is one step: its size tells what was accepted",
    Route.TOTALS: "the server's counters alone, summed over the run",
    Route.NONE: "no speculation: token ids and lengths are recorded",
}


@dataclass(frozen=True)
class Speculation:
    """What a server says of its speculation before it is asked to generate.

    Attributes:
        k: drafts a step at most; 0: without speculation.
        proposer: kplan's name of what drafts, None where the server does not tell.
        growth: chunks can tell the acceptance (a chain of always K drafts, as far as the server tells).
        why_no_growth: why not.
    """

    k: int
    proposer: str | None = None
    growth: bool = True
    why_no_growth: str = ""


def speculation_of(server: Server, info: ServerInfo, metrics: Snapshot | None) -> Speculation:
    """Ask a server for its speculation. Raises InputError when it does not answer."""
    if info.engine == "vllm":
        if metrics is None or not metrics.has("drafts"):
            return Speculation(0)
        return Speculation(len(metrics.by_position("accepted_per_position")))
    told = server.json("/server_info")
    return _sglang(told if isinstance(told, dict) else {})


def _sglang(told: Mapping[str, Any]) -> Speculation:
    algorithm = told.get("speculative_algorithm")
    drafts = told.get("speculative_num_draft_tokens")
    if not algorithm or type(drafts) is not int or drafts < 2:
        return Speculation(0)
    name = _SGLANG_NAMES.get(str(algorithm).upper())
    why = ""
    if told.get("speculative_adaptive"):
        why = "its K adapts, and it does not tell the K of a step"
    elif told.get("speculative_eagle_topk") != 1:
        why = "it drafts trees"
    elif told.get("stream_interval") not in (None, 1):
        why = "its stream interval is above 1"
    return Speculation(drafts - 1, name, not why, why)


def choose_route(info: ServerInfo, spec: Speculation, told: Mapping[str, Any], proposer: str | None) -> Route:
    """The best route, after a first answer.

    Args:
        told: the engine's words in it.
        proposer: kplan's name of what drafts.
    """
    if not spec.k:
        return Route.NONE
    if info.engine == "vllm":
        acceptance = (told.get("metrics") or {}).get("speculative_decoding")
        if acceptance is not None and (
            acceptance.get("per_step_drafted") is not None or not acceptance.get("num_spec_steps")
        ):
            return Route.STEPS
    lookup = proposer is not None and proposer.startswith(LOOKUPS)
    return Route.GROWTH if spec.growth and not lookup else Route.TOTALS


def better(info: ServerInfo, route: Route, spec: Speculation) -> str:
    """What to restart the server with for a better route, "" when there is none."""
    if route in (Route.STEPS, Route.NONE):
        return ""
    if info.engine == "vllm":
        return "restart it with --per-request-spec-decode-metrics detailed to have every step listed"
    if route is Route.TOTALS:
        why = spec.why_no_growth or "a lookup may draft nothing"
        return f"{why}: its steps cannot be told; serve a static K with topk 1 and stream interval 1"
    return ""


def need_speculation(url: str, info: ServerInfo, spec: Speculation) -> None:
    """Raise InputError where a server does not speculate."""
    if spec.k:
        return
    flag = "--speculative-config" if info.engine == "vllm" else "--speculative-algorithm"
    fix = f"start it with {flag}, or give --no-speculation to record token ids and lengths alone"
    raise InputError("--url", url, "the server does not speculate", fix)
