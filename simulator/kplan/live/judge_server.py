"""Is the server the one that a plan is for? What does not match is said before any figure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kplan.errors import InputError
from kplan.export.engines import SGLANG, VLLM
from kplan.live.bench_serve import Traffic
from kplan.live.metrics import Snapshot, Window
from kplan.live.server import Server, ServerInfo
from kplan.live.workload import Demand, Planned

KV_NEAR = 0.1
"""Share by which the KV cache may differ from the plan's."""


def refuse(server: Server, info: ServerInfo, plan: Planned, sent: Demand, before: Snapshot) -> None:
    """Refuse a server on which the plan cannot be verified.

    Raises:
        InputError: it does not speculate while the plan drafts, or has no room for the longest request.
    """
    if plan.drafts and not _speculates(server, info, before):
        raise InputError(
            "--url", server.url, f"the server does not speculate, and the plan drafts ({plan.spec.text})",
            "start it with the plan's config (kplan export)",
        )  # fmt: skip
    longest = int((sent.prompt_len + sent.output_len).max())
    if info.max_model_len is not None and longest > info.max_model_len:
        raise InputError(
            "--url", server.url, f"max_model_len {info.max_model_len}; the longest request has {longest}",
            "raise it, or plan with --max-model-len",
        )  # fmt: skip


def _speculates(server: Server, info: ServerInfo, before: Snapshot) -> bool:
    if info.engine == "sglang":
        return bool(_server_info(server).get("speculative_algorithm"))
    return before.has("drafts")


def _server_info(server: Server) -> dict[str, Any]:
    """What SGLang tells of its flags; nothing when it does not."""
    try:
        told = server.json("/server_info")
    except InputError:
        return {}
    return told if isinstance(told, dict) else {}


def mismatches(server: Server, info: ServerInfo, plan: Planned, before: Snapshot) -> tuple[str, ...]:
    """What the server is that the plan does not say, a sentence each."""
    return (*_named_otherwise(info, plan), *_sized_otherwise(server, info, plan, before))


def _named_otherwise(info: ServerInfo, plan: Planned) -> Iterator[str]:
    asked = plan.plan.question
    if info.engine != plan.setup.engine.name:
        yield f"a {info.engine} server answers; the plan is for {plan.setup.engine.name}"
    target = {"vllm": VLLM, "sglang": SGLANG}[info.engine].version
    if info.version and not info.version.startswith(target):
        yield f"the server is {info.engine} {info.version}; what is known of it was read in {target}"
    known = {asked.model, plan.setup.model.name, plan.setup.model.hf_id or ""}
    if Path(info.model).name.casefold() not in {Path(name).name.casefold() for name in known}:
        yield f"the server serves {info.model}; the plan is for {asked.model}"


def _sized_otherwise(server: Server, info: ServerInfo, plan: Planned, before: Snapshot) -> Iterator[str]:
    if not plan.drafts and _speculates(server, info, before):
        yield "the server speculates; the plan does not"
    if info.engine == "sglang":
        seats = _server_info(server).get("max_running_requests")
        if isinstance(seats, int) and seats != plan.plan.question.max_num_seqs:
            yield f"the server has {seats} seats; the plan {plan.plan.question.max_num_seqs}"
        return
    if plan.drafts and before.has("accepted_per_position"):
        longest = len(before.by_position("accepted_per_position"))
        if longest != plan.largest_k:
            yield f"the server was started with K = {longest}; the plan's largest is {plan.largest_k}"
    tokens, planned = _kv_tokens(before), plan.plan.answer.kv_tokens
    if tokens is not None and planned is not None and abs(tokens / planned - 1) > KV_NEAR:
        yield f"the server's KV cache holds {tokens:,} tokens; the plan counts on {planned:,}"


def _kv_tokens(before: Snapshot) -> int | None:
    for labels in before.series.get("vllm:cache_config_info", {}):
        told = dict(labels)
        try:
            return int(told["num_gpu_blocks"]) * int(told["block_size"])
        except (KeyError, ValueError):
            return None
    return None


def disturbances(window: Window, traffic: Traffic) -> tuple[str, ...]:
    """What else happened on the server while it was measured, a sentence each."""
    found = []
    served = window.grown("ttft_requests")
    if served != len(traffic):
        found.append(
            f"the server began {served:,.0f} requests and {len(traffic):,} were sent: another client was on "
            "it, and the server's own figures are of both"
        )
    if window.has("drafts") and window.grown("drafts") == 0:
        found.append("the server speculates, and drafted nothing for this load")
    return tuple(found)
