"""What an export is, and what it needs to know of the model and the drafter it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export.choose import Choice
from kplan.export.engines import EngineVersion
from kplan.profiles import Tree

BALANCERS = {
    "round-robin": "in turn",
    "least-outstanding": "to the one with the fewest unfinished",
}
"""Router of a plan -> where its load balancer sends a request."""


class UnnamedWeightsError(InputError):
    """The drafter is a layout without a checkpoint: a plan can be made with it, a config cannot."""


class ServedModel(Protocol):
    """The target model: :class:`kplan.profiles.Model` is one."""

    @property
    def hf_id(self) -> str:
        """Name of the weights that the engine loads."""
        ...

    @property
    def mtp_layers(self) -> int:
        """Multi-token-prediction layers of the checkpoint."""
        ...

    @property
    def max_context(self) -> int | None:
        """Longest sequence that it was made for, tokens; None when not stated."""
        ...

    @property
    def weight_dtype(self) -> str:
        """Format of its matrices: bf16, fp8 or int4."""
        ...

    @property
    def kv_dtype(self) -> str:
        """Format of its KV cache: bf16 or fp8."""
        ...


class ServedDrafter(Protocol):
    """The proposer: :class:`kplan.profiles.Drafter` is one."""

    @property
    def proposer(self) -> str:
        """ngram, eagle, eagle3, draft-model ..."""
        ...

    @property
    def hf_id(self) -> str | None:
        """Name of the drafter's weights, None when it has none of its own."""
        ...

    @property
    def engine_methods(self) -> Mapping[str, str]:
        """Engine name -> its name of the method."""
        ...

    @property
    def tree(self) -> Tree | None:
        """The draft tree; None of a chain."""
        ...


@dataclass(frozen=True)
class EngineExport:
    """Files that make one engine run a plan.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        version: the release that the files are written for.
        policy: text of the policy that the files run.
        files: file name -> its text.
        command: shell command, run in the folder of the files, that starts one replica.
        command_line: the same start with every option on the command line, quoted for a shell; an adaptive
            JSON stays a file.
        speculative_json: value of vLLM's ``--speculative-config``; None without speculation, and for SGLang.
        proposal: entries of the table that vLLM's pull request #48944 proposes (batch from, to, context from,
            to, K), which no release loads; empty unless the policy looks at the context.
        notes: what the reader must know; the same lines stand as comments in the files.
    """

    engine: str
    version: str
    policy: str
    files: Mapping[str, str]
    command: str
    command_line: str
    notes: tuple[str, ...]
    speculative_json: str | None = None
    proposal: tuple[tuple[int, int | None, int, int | None, int], ...] = ()


def method_of(engine: EngineVersion, model: ServedModel, drafter: ServedDrafter | None) -> str:
    """The engine's own name of the drafter's method.

    Raises:
        UnnamedWeightsError: the method loads a checkpoint, and the drafter names none.
        InputError: there is no drafter, the engine has no such method, or it is MTP and the model has no MTP
            layers.
    """
    if drafter is None:
        raise InputError("proposer", "none", "speculation needs a drafter", "pass the drafter of the plan")
    method = drafter.engine_methods.get(engine.name)
    if method not in engine.methods:
        known = ", ".join(sorted(engine.methods))
        raise InputError(
            "proposer", drafter.proposer, f"{engine} has no such method (it has {known})", "plan with another"
        )
    if method in ("mtp", "NEXTN") and model.mtp_layers == 0:
        raise InputError(
            "proposer", drafter.proposer, f"{model.hf_id} has no MTP layers", "plan with another proposer"
        )
    if method in engine.own_weights and drafter.hf_id is None:
        raise UnnamedWeightsError(
            "proposer",
            drafter.proposer,
            f"no trained drafter for {model.hf_id} is known, and {engine.title} must load one",
            "name it: --drafter ORG/NAME or its folder",
        )
    return method


def table_problem(engine: EngineVersion, drafter: ServedDrafter) -> str:
    """What goes wrong when K changes with the batch, "" when nothing does."""
    method = drafter.engine_methods.get(engine.name, "")
    return engine.table_refused.get(drafter.proposer, engine.table_refused.get(method, ""))


def tree_of(drafter: ServedDrafter | None) -> Tree | None:
    """The draft tree; None of a chain, and without a drafter."""
    return None if drafter is None else drafter.tree


def launch(plan: Plan, engine: EngineVersion, model: ServedModel) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Flags for the context, the formats, the caching and the scheduling that the plan asks for, and notes.

    Engines quantize a bf16 checkpoint to fp8 while they load it; any other format must be the checkpoint's.

    Raises:
        InputError: a context above the model's, with which no engine starts.
    """
    content: dict[str, Any] = {}
    notes = []
    longest, wanted = model.max_context, plan.question.max_model_len
    if longest is not None and wanted is not None and wanted > longest:
        raise InputError(
            "--max-model-len", wanted, f"{model.hf_id} has a context of {longest} tokens, and {engine} "
            "would not start", "plan with a shorter one",
        )  # fmt: skip
    own, asked = model.weight_dtype, plan.question.quantization
    if asked == "fp8" and own == "bf16":
        content["quantization"] = "fp8"
    elif asked is not None and asked != own:
        notes.append(
            f"the plan is for {asked} weights: put a checkpoint in that format in place of {model.hf_id}"
        )
    if plan.question.max_model_len is not None:
        content[engine.max_len_flag] = plan.question.max_model_len
    if not plan.question.prefix_caching:
        flag, off = engine.no_prefix_cache
        content[flag] = off
    if plan.question.async_scheduling is False:
        content[engine.no_async_flag] = True
    if plan.question.enforce_eager:
        flag, value = engine.eager_flag
        content[flag] = value
    kv = plan.question.kv_cache_dtype
    if kv == "auto" and model.kv_dtype == "fp8":
        kv = "fp8"
    if kv != "auto":
        content["kv-cache-dtype"] = engine.kv_cache_names[kv]
    if Path(model.hf_id).is_absolute():
        notes.append(f"{model.hf_id} must hold the weights and the tokenizer")
    return content, tuple(notes)


def general_notes(plan: Plan, engine: EngineVersion, choice: Choice) -> tuple[str, ...]:
    """Notes that hold for every engine: a replaced policy, several replicas, a load that does not fit."""
    notes = []
    if choice.rule.by_context:
        notes.append(
            f"no released engine looks at the context: written is the table by batch size that "
            f"{choice.rule.text} is at the load's mean context of {choice.rule.context:,} tokens; the "
            "prediction is of the policy that looks at every step's own"
        )
    if choice.replaced:
        notes.append(
            f"the recommended policy {plan.answer.policy} is not written: {choice.replaced}; "
            f"{choice.rule.text} is the best policy of the plan that {engine.title} runs"
        )
    if plan.question.engine != engine.name:
        notes.append(
            f"the plan was simulated for {plan.question.engine}; on {engine.title} expect the same order, "
            "not the same numbers"
        )
    if plan.answer.replicas > 1:
        gpus = plan.question.tp * plan.question.dp
        notes.append(
            f"start {plan.answer.replicas} servers from this file, {gpus} GPU{'s' if gpus > 1 else ''} each, "
            f"behind a load balancer that sends requests {BALANCERS[plan.question.router]}"
        )
    if plan.answer.saturated:
        notes.append("the plan says that this load saturates the replicas: latencies will grow without bound")
    elif not plan.answer.feasible:
        notes.append("the plan says that no policy serves this load as asked: this is the least bad")
    return tuple(notes)
