"""vLLM: the YAML of ``vllm serve --config``."""

from __future__ import annotations

import json
from typing import Any

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export.choose import Rule, Table, choose
from kplan.export.command import vllm_command
from kplan.export.engines import DEFAULT_GPU_MEMORY, GRAPH_TOKENS, LOOKUP_WINDOW, VLLM
from kplan.export.header import header
from kplan.export.served import (
    BALANCERS,
    EngineExport,
    ServedDrafter,
    ServedModel,
    general_notes,
    launch,
    method_of,
    table_problem,
)
from kplan.export.yamltext import dump, row

_FILE = "vllm.yaml"
_COMMAND = f"vllm serve --config {_FILE}"


def export_vllm(plan: Plan, model: ServedModel, drafter: ServedDrafter | None) -> EngineExport:
    """The plan as a vLLM config, or the best policy of the plan that vLLM runs (a note says so).

    Off, and K = 0 at every batch size, are written without ``speculative-config``: vLLM refuses a static K of
    0, and a K of 0 in a table still runs the drafter.

    Args:
        plan: what to run.
        model: target weights.
        drafter: proposer; None is accepted when nothing is drafted.

    Raises:
        InputError: the engine would crash on the config, ignore it or draft wrong tokens.
    """
    choice = choose(plan, _cannot_run)
    table = choice.rule.form
    assert isinstance(table, Table)
    content: dict[str, Any] = {
        "model": model.hf_id,
        "max-num-seqs": plan.question.max_num_seqs,
        "max-num-batched-tokens": plan.question.max_num_batched_tokens,
    }
    if plan.question.gpu_memory_utilization != DEFAULT_GPU_MEMORY:
        content["gpu-memory-utilization"] = plan.question.gpu_memory_utilization
    if plan.question.tp > 1:
        content["tensor-parallel-size"] = plan.question.tp
    if plan.question.dp > 1:
        content["data-parallel-size"] = plan.question.dp
    flags, launch_notes = launch(plan, VLLM, model)
    content |= flags
    notes = general_notes(plan, VLLM, choice) + launch_notes
    room, room_notes = _room(plan, model)
    content |= room
    notes += room_notes + _rank_notes(plan)
    speculative = None
    if table.max_k > 0:
        content["speculative-config"] = _speculative(table, model, drafter, plan.question.dp)
        speculative = json.dumps(content["speculative-config"], separators=(",", ":"))
        notes += _notes(table, drafter) + _graph_notes(plan, table)
    _check_budget(plan, table, drafter)
    command_line = vllm_command(content)
    text = header(plan, VLLM, choice, (_COMMAND, command_line), notes) + dump(content)
    return EngineExport(
        engine=VLLM.name,
        version=VLLM.version,
        policy=choice.rule.text,
        files={_FILE: text},
        command=_COMMAND,
        command_line=command_line,
        notes=notes,
        speculative_json=speculative,
        proposal=choice.rule.by_context,
    )


def _cannot_run(rule: Rule) -> str:
    if isinstance(rule.form, Table):
        return ""
    return f"{VLLM} has no way to run it: its K is fixed or follows the batch size"


def _room(plan: Plan, model: ServedModel) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The context where the KV cache is too small for it: vLLM would not start, and auto takes what fits."""
    context = plan.question.max_model_len or model.max_context
    held = plan.answer.kv_tokens
    if context is None or held is None or held >= context:
        return {}, ()
    return {VLLM.max_len_flag: "auto"}, (
        f"the KV cache is predicted to hold {held:,} tokens, less than the context of {context:,}, and "
        "vLLM would not start: auto lowers it to what fits",
    )


def _rank_notes(plan: Plan) -> tuple[str, ...]:
    if plan.question.dp == 1:
        return ()
    return (
        f"vLLM itself sends a request to the rank of {plan.question.dp} with the fewest unfinished; the plan "
        f"simulated a router over ranks that sends requests {BALANCERS[plan.question.router]}",
    )


def _speculative(table: Table, model: ServedModel, drafter: ServedDrafter | None, dp: int) -> dict[str, Any]:
    """The ``speculative-config`` mapping; key order as in vLLM's documentation."""
    method = method_of(VLLM, model, drafter)
    assert drafter is not None
    config: dict[str, Any] = {"method": method}
    if drafter.hf_id is not None:
        config["model"] = drafter.hf_id
    config["num_speculative_tokens"] = table.max_k
    if drafter.proposer == "pard":
        config["parallel_drafting"] = True
    if method == "ngram":
        config["prompt_lookup_min"], config["prompt_lookup_max"] = LOOKUP_WINDOW
    layers = model.mtp_layers
    if method == "mtp" and table.max_k > layers and table.max_k % layers:
        raise InputError(
            "K",
            table.max_k,
            f"above {layers} (the MTP layers) it must be a multiple of it",
            "plan again",
        )
    if table.fixed:
        return config
    shown = ",".join(f"{r.start}-{r.end}={r.k}" for r in table.ranges)
    problem = table_problem(VLLM, drafter)
    if problem:
        raise InputError(
            "batch table",
            shown,
            f"cannot run with {drafter.proposer} on {VLLM}: {problem}",
            f"use one K (fixed:{table.max_k}) or another proposer",
        )
    if dp > 1:
        raise InputError(
            "--dp",
            dp,
            f"must be 1 with the batch table {shown}: {VLLM} drops the table and drafts {table.max_k} always",
            "plan with --replicas instead, or use one K",
        )
    config["num_speculative_tokens_per_batch_size"] = [row((r.start, r.end, r.k)) for r in table.ranges]
    return config


def _check_budget(plan: Plan, table: Table, drafter: ServedDrafter | None) -> None:
    """Refuse a token budget per step with which vLLM does not start."""
    budget, seats = plan.question.max_num_batched_tokens, plan.question.max_num_seqs
    needed, whose = seats, f"the {seats} seats of max_num_seqs"
    if table.max_k > 0 and drafter is not None:
        method = drafter.engine_methods.get(VLLM.name)
        slots = table.max_k if drafter.proposer == "pard" else int(method == "draft_model")
        if slots >= needed:
            needed, whose = slots + 1, f"the {slots} KV slots a request that {drafter.proposer} drafts into"
    if budget < needed:
        raise InputError(
            "--max-num-batched-tokens", budget, f"must be at least {needed} for {whose}, or {VLLM} does not "
            "start", f"plan with {needed} or more",
        )  # fmt: skip


def _graph_notes(plan: Plan, table: Table) -> tuple[str, ...]:
    """Batches that run without a captured graph, by K: graphs are sized in tokens, K + 1 a request."""
    if plan.question.enforce_eager:
        return ()
    eager = []
    for entry in table.ranges:
        largest = GRAPH_TOKENS // (entry.k + 1)
        if entry.end > largest:
            eager.append(f"{max(entry.start, largest + 1)}..{entry.end} (K = {entry.k})")
    if not eager:
        return ()
    return (
        f"CUDA graphs are captured up to {GRAPH_TOKENS} tokens a step (twice that on Blackwell): batches "
        f"{', '.join(eager)} run without one",
    )


def _notes(table: Table, drafter: ServedDrafter | None) -> tuple[str, ...]:
    notes: list[str] = []
    method = "" if drafter is None else drafter.engine_methods.get(VLLM.name, "")
    if method == "ngram":
        low, high = LOOKUP_WINDOW
        notes.append(
            f"prompt_lookup {low} to {high} is the window of the recordings that n-gram acceptance is known "
            "from; vLLM's own default is 5 to 5"
        )
    if table.fixed or drafter is None:
        return tuple(notes)
    notes += [
        "the batch size that the table looks up counts prefilling requests too, and the K chosen in one step "
        "is verified in the next",
        "on the V1 model runner a table downgrades full CUDA graphs to piecewise ones (published: about 14% "
        "on a single stream, vLLM #49548); the V2 runner captures each K",
    ]
    if drafter.hf_id is not None and any(r.k == 0 for r in table.ranges):
        notes.append("K = 0 still runs one drafter forward per step, to keep the drafter's KV cache current")
    if method in VLLM.table_caveats:
        notes.append(VLLM.table_caveats[method])
    return tuple(notes)
