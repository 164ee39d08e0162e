"""A workload: how long requests are, and what each proposer's drafts are accepted like on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance.joint import JointModel, proposers_of
from kplan.acceptance.joint_file import load_pair
from kplan.acceptance.model import TraceModel
from kplan.acceptance.model_file import load_model
from kplan.acceptance.trace import TraceSet
from kplan.acceptance.tree import tree_model
from kplan.errors import InputError
from kplan.plainjson import TextFile
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
        pairs: two proposers joined by ``+`` -> the file of their dependence, read when asked for.
    """

    name: str
    summary: str
    target: str
    lengths: Lengths
    models: Mapping[str, TextFile]
    missing: Mapping[str, str]
    provenance: Provenance
    trees: Mapping[str, Drafter] = field(default_factory=dict)
    pairs: Mapping[str, TextFile] = field(default_factory=dict)

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
        """The models of the proposers that ``proposer`` joins with ``+``, to be generated together.

        Of three or more, those depend on each other that were fitted with the one most others were.

        Raises:
            InputError: see :meth:`model`; a name that is empty or stands there twice; a bad file of a pair.
        """
        names = proposers_of(proposer)
        models = {name: self.model(name) for name in names}
        fitted = [load_pair(file) for pair, file in self.pairs.items() if set(pair.split("+")) <= set(names)]
        led = Counter(pair.leader for pair in fitted)
        leader = max(names, key=lambda name: led[name])
        return JointModel(models, tuple(pair for pair in fitted if pair.leader == leader))

    def sources(self, proposer: str) -> dict[str, Provenance]:
        """What the workload's figures rest on: ``acceptance`` of the proposer (of each, where the name joins
        several, and how they depend on each other) and ``lengths``."""
        joint = self.joint(proposer)
        alone = len(joint.models) == 1
        found = {
            "acceptance" if alone else f"acceptance of {name}": model.provenance
            for name, model in joint.models.items()
        }
        return {**found, **joint.provenances, "lengths": self.lengths.provenance}

    def sample_lengths(self, seed: int, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(n,) prompt and (n,) output lengths; request i's depend on ``seed``, not on n."""
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
        """Generate ``n`` requests from ``seed``.

        ``prompt_tokens`` and ``output_tokens``, where given, are the lengths in place of sampled ones.
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
            notes=(
                f"generated from the trace model of {proposer} on {self.name}, seed {seed}",
                *(
                    f"{what}: {source.kind}, {source.source}; {source.note}"
                    for what, source in joint.provenances.items()
                ),
            ),
        )


def _constant(what: str, value: int | None, sampled: NDArray[np.int32]) -> NDArray[np.int32]:
    if value is None:
        return sampled
    if value < 1:
        raise InputError(what, value, "at least 1 is needed")
    return np.full_like(sampled, value)
