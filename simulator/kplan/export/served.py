"""What an export is, and what it needs to know of the model and the drafter it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export.choose import Choice
from kplan.export.engines import EngineVersion


class ServedModel(Protocol):
    """The target model: :class:`kplan.profiles.Model` is one."""

    @property
    def hf_id(self) -> str:
        """Name of the weights that the engine loads."""
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


@dataclass(frozen=True)
class EngineExport:
    """Files that make one engine run a plan.

    Attributes:
        engine: ``vllm`` or ``sglang``.
        version: the release that the files are written for.
        policy: text of the policy that the files run.
        files: file name -> its text.
        command: shell command, run in the folder of the files, that starts one replica.
        notes: what the reader must know; the same lines stand as comments in the files.
    """

    engine: str
    version: str
    policy: str
    files: Mapping[str, str]
    command: str
    notes: tuple[str, ...]


def method_of(engine: EngineVersion, model: ServedModel, drafter: ServedDrafter | None) -> str:
    """The engine's own name of the drafter's method.

    Raises:
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
    if method in ("mtp", "NEXTN") and mtp_layers(model) == 0:
        raise InputError(
            "proposer", drafter.proposer, f"{model.hf_id} has no MTP layers", "plan with another proposer"
        )
    return method


def table_problem(engine: EngineVersion, drafter: ServedDrafter) -> str:
    """What goes wrong when K changes with the batch, "" when nothing does."""
    method = drafter.engine_methods.get(engine.name, "")
    return engine.table_refused.get(drafter.proposer, engine.table_refused.get(method, ""))


def mtp_layers(model: ServedModel) -> int:
    """MTP layers of the target; a model that does not speak of any has none."""
    return int(getattr(model, "mtp_layers", 0))


def general_notes(plan: Plan, engine: EngineVersion, choice: Choice) -> tuple[str, ...]:
    """Notes that hold for every engine: a replaced policy, several replicas, a load that does not fit."""
    notes = []
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
        notes.append(
            f"start {plan.answer.replicas} servers from this file behind a load balancer "
            "(data parallelism inside one server is another thing and was not planned)"
        )
    if plan.answer.saturated:
        notes.append("the plan says that this load saturates the replicas: latencies will grow without bound")
    elif not plan.answer.feasible:
        notes.append("the plan says that no policy serves this load as asked: this is the least bad")
    return tuple(notes)
