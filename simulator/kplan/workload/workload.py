"""A workload: how long requests are, and what each proposer's drafts are accepted like on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.joint import JointModel, proposers_of
from kplan.acceptance.model import TraceModel
from kplan.acceptance.model_file import TextFile, load_model
from kplan.acceptance.trace import TraceSet
from kplan.acceptance.tree import tree_model
from kplan.errors import InputError
from kplan.profiles import Drafter
from kplan.provenance import Provenance
from kplan.workload.lengths import Lengths


@dataclass(frozen=True)
class Workload:
    """Lengths and trace models of one kind of request.

    Attributes:
        name, summary: as in its profile.
        target: the model whose outputs and acceptance these are, "" when not known.
        lengths: joint model of prompt and output length.
        models: proposer -> its trace model's file, read when asked for.
        missing: proposer -> why the workload has no model of it.
        provenance: of the workload as a whole.
        trees: proposer -> the drafter whose tree is derived from the model of its head.
    """

    name: str
    summary: str
    target: str
    lengths: Lengths
    models: Mapping[str, TextFile]
    missing: Mapping[str, str]
    provenance: Provenance
    trees: Mapping[str, Drafter] = field(default_factory=dict)

    def drafted_by(self, drafter: Drafter) -> Workload:
        """The workload with a model of ``drafter``'s tree, where it has none of it but one of its head.

        Raises:
            InputError: its own model was derived for another tree.
        """
        if drafter.tree is None:
            return self
        if drafter.proposer in self.models:
            known = self.model(drafter.proposer).facts.get("tree")
            if known not in (None, asdict(drafter.tree)):
                raise InputError(
                    f"trace model of {drafter.proposer}",
                    known,
                    f"the tree served is {asdict(drafter.tree)}",
                    "derive it for that tree (kplan traces tree)",
                )
            return self
        if drafter.head not in self.models:
            return self
        return replace(self, trees={**self.trees, drafter.proposer: drafter})

    def model(self, proposer: str) -> TraceModel:
        """The trace model of ``proposer``.

        Raises:
            InputError: the workload has none, or its file is bad.
        """
        drafter = self.trees.get(proposer)
        if drafter is not None and drafter.tree is not None and drafter.head is not None:
            return tree_model(self.model(drafter.head), proposer, drafter.tree)
        if proposer not in self.models:
            have = f"workload {self.name} has {', '.join(sorted(self.models))}"
            why = self.missing.get(proposer, "")
            bound = f"{have} ({why})" if why else have
            raise InputError("--proposer", proposer, bound, "choose one of these or give --traces FILE")
        return load_model(self.models[proposer])

    def joint(self, proposer: str) -> JointModel:
        """The models of the proposers that the name joins with ``+``, to be generated together.

        Raises:
            InputError: see :meth:`model`; a name that is empty or stands there twice.
        """
        return JointModel({name: self.model(name) for name in proposers_of(proposer)})

    def sources(self, proposer: str) -> dict[str, Provenance]:
        """What the workload's figures rest on: ``acceptance`` of the proposer (of each, where the name joins
        several) and ``lengths``."""
        models = self.joint(proposer).models
        if len(models) == 1:
            found = {"acceptance": models[proposer].provenance}
        else:
            found = {f"acceptance of {name}": model.provenance for name, model in models.items()}
        return {**found, "lengths": self.lengths.provenance}

    def sample_lengths(self, seed: int, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(n,) prompt and (n,) output lengths; request i's do not depend on n."""
        return self.lengths.sample(seed, n)

    def traces(
        self,
        seed: int,
        n: int,
        proposer: str,
        *,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> TraceSet:
        """Generate ``n`` requests. Constant lengths, where given, replace the sampled ones.

        A name that joins proposers with ``+`` gives the traces of all of them at the same positions.

        Raises:
            InputError: the workload has no model of the proposer, n < 1, or a length below 1.
        """
        joint = self.joint(proposer)
        prompt, output = self.sample_lengths(seed, n)
        prompt = _constant("prompt tokens", prompt_tokens, prompt)
        output = _constant("output tokens", output_tokens, output)
        return TraceSet(
            request_id=np.array([f"{self.name}-{i}" for i in range(n)], dtype=np.str_),
            prompt_len=prompt,
            proposers=joint.generate(seed, output),
            provenance=next(iter(joint.models.values())).provenance,
            notes=(f"generated from the trace model of {proposer} on {self.name}, seed {seed}",),
        )


def _constant(what: str, value: int | None, sampled: NDArray[np.int32]) -> NDArray[np.int32]:
    if value is None:
        return sampled
    if value < 1:
        raise InputError(what, value, "at least 1 is needed")
    return np.full_like(sampled, value)
