"""SGLang: the YAML of ``--config`` and the JSON of ``--speculative-adaptive-config``."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export.choose import Ladder, Rule, Table, choose
from kplan.export.command import sglang_command
from kplan.export.engines import DEFAULT_GPU_MEMORY, SGLANG
from kplan.export.header import header
from kplan.export.ladder import problems
from kplan.export.served import (
    EngineExport,
    ServedDrafter,
    ServedModel,
    general_notes,
    launch,
    method_of,
    table_problem,
    tree_of,
)
from kplan.export.table import KRange, compress, lookup
from kplan.export.yamltext import dump

_FILE, _ADAPTIVE_FILE = "sglang.yaml", "sglang_adaptive.json"
_COMMAND = f"python -m sglang.launch_server --config {_FILE}"


def export_sglang(plan: Plan, model: ServedModel, drafter: ServedDrafter | None) -> EngineExport:
    """The plan as an SGLang config, or the best policy of the plan that SGLang runs (a note says so).

    A batch table becomes an adaptive ladder with one candidate per slot: SGLang then has nothing to adapt and
    drafts the table's K, apart from batches that it pads over a boundary (a note names them). A fixed K is
    written with the static flags; its ladder stands beside it, unused, to start editing from.

    Args:
        plan: what to run.
        model: target weights.
        drafter: proposer; None is accepted when nothing is drafted.

    Raises:
        InputError: the plan has data-parallel ranks, SGLang has no such proposer, or no policy of the plan
            runs on it.
    """
    if plan.question.dp > 1:
        raise InputError(
            "--dp", plan.question.dp,
            f"{SGLANG} has no such ranks: its data-parallel attention is another layout and switches its "
            "adaptive steps off, its dp-size starts whole servers",
            "plan with --replicas",
        )  # fmt: skip
    choice = choose(plan, lambda rule: _cannot_run(rule, drafter))
    form = choice.rule.form
    assert form is not None
    content: dict[str, Any] = {"model-path": model.hf_id}
    if plan.question.gpu_memory_utilization != DEFAULT_GPU_MEMORY:
        content["mem-fraction-static"] = plan.question.gpu_memory_utilization
    if plan.question.tp > 1:
        content["tp-size"] = plan.question.tp
    # Left out, it becomes 48 as soon as speculation is on, whatever batch the plan assumed.
    content["max-running-requests"] = plan.question.max_num_seqs
    flags, launch_notes = launch(plan, SGLANG, model)
    content |= flags
    notes = general_notes(plan, SGLANG, choice) + launch_notes
    ladder = _ladder(form, drafter)
    if form.max_k > 0:
        content |= _flags(form, model, drafter)
        if "quantization" in content and "speculative-draft-model-path" in content:
            # Left out, the drafter's weights are quantized like the target's, which was not planned.
            content["speculative-draft-model-quantization"] = "unquant"
        adaptive = isinstance(form, Ladder) or not form.fixed
        if adaptive:
            content |= {"speculative-adaptive": True, "speculative-adaptive-config": _ADAPTIVE_FILE}
        notes += _notes(plan, form, drafter, adaptive=adaptive, has_ladder=ladder is not None)
    command_line = sglang_command(content)
    text = header(plan, SGLANG, choice, (_COMMAND, command_line), notes) + dump(content)
    files = {_FILE: text}
    if ladder is not None:
        files[_ADAPTIVE_FILE] = json.dumps(ladder, indent=2) + "\n"
    return EngineExport(
        engine=SGLANG.name,
        version=SGLANG.version,
        policy=choice.rule.text,
        files=files,
        command=_COMMAND,
        command_line=command_line,
        notes=notes,
        proposal=choice.rule.by_context,
    )


def _cannot_run(rule: Rule, drafter: ServedDrafter | None) -> str:
    if rule.form is None:
        return f"{SGLANG} has no way to run it: its K is fixed or climbs a ladder per batch size"
    adaptive = isinstance(rule.form, Ladder) or not rule.form.fixed
    if adaptive and tree_of(drafter) is not None:
        return f"{SGLANG} does not run it with a tree: its adaptive steps are for chains"
    if adaptive and drafter is not None and (problem := table_problem(SGLANG, drafter)):
        return f"{SGLANG} does not run it with {drafter.proposer}: {problem}"
    return ""


def _flags(form: Table | Ladder, model: ServedModel, drafter: ServedDrafter | None) -> dict[str, Any]:
    """The speculative flags: always all three counts, for without them SGLang picks a tree or just stops."""
    method = method_of(SGLANG, model, drafter)
    flags: dict[str, Any] = {"speculative-algorithm": method}
    if drafter is not None and drafter.hf_id is not None:
        flags["speculative-draft-model-path"] = drafter.hf_id
    tree = tree_of(drafter)
    if tree is not None and form.start_k > tree.nodes:
        raise InputError(
            "K",
            form.start_k,
            f"the tree drafts {tree.nodes} nodes to choose from",
            "plan with a smaller --max-k",
        )
    flags |= {
        "speculative-num-steps": form.start_k if tree is None else tree.depth,
        "speculative-eagle-topk": 1 if tree is None else tree.topk,
        "speculative-num-draft-tokens": form.start_k + 1,
    }
    if method == "NGRAM":
        # Breadth 1 makes its draft a chain of K tokens; by default it is a tree of 12.
        flags["speculative-ngram-max-bfs-breadth"] = 1
    return flags


def _ladder(form: Table | Ladder, drafter: ServedDrafter | None) -> Mapping[str, Any] | None:
    """The adaptive JSON; None without speculation, or with a proposer that SGLang does not adapt."""
    if isinstance(form, Ladder):
        if found := problems(form.slots):
            raise InputError("adaptive ladder", "its JSON", found[0].text, "mend the policy's ladder")
        return form.slots
    if form.max_k == 0 or drafter is None or tree_of(drafter) or table_problem(SGLANG, drafter):
        return None
    return {str(r.start): {"candidate_steps": [r.k]} for r in form.ranges}


def padded(ranges: tuple[KRange, ...]) -> tuple[KRange, ...]:
    """The table that SGLang runs in place of this one.

    It pads a batch to a captured decode-graph size before it looks up the slot, so a boundary of the table
    between two such sizes moves down to the lower one.
    """
    return compress(_given(lookup(ranges)))


def padded_differences(ranges: tuple[KRange, ...]) -> tuple[KRange, ...]:
    """Batch sizes whose K on SGLang is not the table's, with the K that they get (see :func:`padded`)."""
    wanted = lookup(ranges)
    given = _given(wanted)
    return tuple(r for r in compress(given * (given != wanted) - (given == wanted)) if r.k >= 0)


def _given(wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """(last batch + 1,) K that SGLang drafts, of the K wanted; entry 0 is unused."""
    sizes = SGLANG.graph_sizes
    given = wanted.copy()
    for batch in range(1, len(wanted)):
        at = bisect_left(sizes, batch)
        size = sizes[at] if at < len(sizes) else batch
        given[batch] = wanted[min(size, len(wanted) - 1)]
    return given


def _notes(
    plan: Plan, form: Table | Ladder, drafter: ServedDrafter | None, *, adaptive: bool, has_ladder: bool
) -> tuple[str, ...]:
    notes = [
        "the plan's token budget per step is not written: SGLang sizes its prefill chunks itself "
        "(chunked-prefill-size)"
    ]
    if drafter is not None and drafter.engine_methods.get(SGLANG.name) == "NGRAM":
        notes.append(
            "SGLang's NGRAM looks up a trie of all text served, not the prompt-lookup rule that the plan "
            "simulated: expect another acceptance length"
        )
    if adaptive:
        notes.append(
            f"start the server in the folder that holds {_ADAPTIVE_FILE}; with adaptive steps LoRA is "
            "refused, and attention data parallelism or two-batch overlap switch them off"
        )
    elif has_ladder:
        notes.append(
            f"K is fixed, so {_ADAPTIVE_FILE} is not used; to start from it, add speculative-adaptive: true "
            f"and speculative-adaptive-config: {_ADAPTIVE_FILE}"
        )
    if adaptive:
        notes.append(
            f"a set of CUDA graphs is captured for every K of {_ADAPTIVE_FILE}, and buffers are sized for "
            f"{form.max_k + 1} tokens a request: it takes more memory than one K"
        )
    if isinstance(form, Table) and adaptive:
        notes.extend(
            f"batches {r.start}..{r.end} are padded to a captured graph size: they run K = {r.k}, not the "
            "table's"
            for r in padded_differences(form.ranges)
        )
        if any(r.k == 0 for r in form.ranges):
            notes.append("K = 0 still runs the drafter's extend pass at every step")
    notes.append(
        f"batches up to max-running-requests {plan.question.max_num_seqs} as planned (SGLang's default is 48)"
    )
    return tuple(notes)
