"""Acceptance of a draft tree from that of the head's chain: by depth, and by the rank of a branch.

At a node whose path is right so far, the head's r-th best token is the target's with the chance

    q_r = c_r (1 - c_1) ... (1 - c_{r-1}),   c_1 = h,   c_r = ratio_r h

where ``h`` is the chain's hazard at that depth and ``c_r`` the chance that rank r is right when those before
it are wrong. A path is right with the product of its nodes' chances. Paths exclude each other: the accepted
tokens are, in the mean, the sum over the nodes verified.

The tree is built as SGLang builds it (``select_top_k_tokens`` and ``organize_draft_results`` of 0.5.23): the
``topk`` best paths of a depth each grow ``topk`` children, and of all nodes drafted the best are verified.
SGLang ranks paths by the head's own confidence at that moment; here their mean chance ranks them. What the
choice gains from confidence is in the ratios, which were fitted on trees that SGLang built.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import cells
from kplan.acceptance.model import TraceModel
from kplan.errors import InputError
from kplan.profiles import Tree
from kplan.provenance import Kind, Provenance

Floats = NDArray[np.float64]

RANK_RATIOS = (0.682, 0.078)
"""Ratio of rank 2, and of rank 3 and later ones: with them 5 nodes of a tree of depth 3 and topk 2, and 20 of
one of topk 4, have the published 2.51 and 2.92 tokens a step where the chain of 3 has 2.25."""
RATIOS_FROM = Provenance(
    Kind.FITTED,
    "arXiv:2601.11580, trees of Fig. 2: Qwen3-8B on GSM8K at batch 1",
    "two ratios on two lengths, with one hazard at every depth",
)


@dataclass(frozen=True)
class DraftTree:
    """The nodes that are verified, and how they hang together.

    Attributes:
        ratios: (topk - 1,) ratio of ranks 2, 3, ... to the first.
        accepted: (depth,) marginal acceptance: chance that the drafts at depths 1..d are all accepted.
        children: (depth, topk + 1) share of accepted nodes at depth d (the root for the first) by how many
            children of theirs, the best ones, are verified; a row sums to 1.
    """

    ratios: Floats
    accepted: Floats
    children: Floats

    @property
    def length(self) -> float:
        """Tokens per step, bonus included."""
        return 1.0 + float(self.accepted.sum())

    def conditional(self, depth: int, hazard: Floats | np.float64) -> Floats:
        """Conditional acceptance at ``depth`` (from 1) where the chain's is ``hazard``."""
        ranks = rank_chances(np.asarray(hazard), self.ratios)
        caught = np.cumsum(np.concatenate([np.zeros_like(ranks[:1]), ranks]), axis=0)
        return np.asarray(np.tensordot(self.children[depth - 1], caught, axes=1))


def ratios_of(topk: int, ratios: tuple[float, ...] = RANK_RATIOS) -> Floats:
    """(topk - 1,) ratios of ranks 2 to topk; the last one given stands for those after it."""
    return np.array([ratios[min(rank, len(ratios) - 1)] for rank in range(topk - 1)])


def rank_chances(hazard: Floats, ratios: Floats) -> Floats:
    """(1 + len(ratios), ...) chance that each rank is the target's token, given the chain's hazard (...)."""
    catch = np.stack([hazard, *(np.minimum(ratio * hazard, 1.0) for ratio in ratios)])
    missed = np.cumprod(1.0 - catch, axis=0)
    return np.asarray(catch * np.concatenate([np.ones_like(missed[:1]), missed[:-1]]))


def draft_tree(hazard: Floats, topk: int, nodes: int, ratios: Floats) -> DraftTree:
    """Draft by the (depth,) conditional hazards of the chain and keep the best ``nodes``.

    Of equal paths the one drafted first is kept, so a node never goes without its parent.

    Args:
        ratios: (topk - 1,) from :func:`ratios_of`.

    Raises:
        InputError: a hazard outside 0..1, or more nodes than are drafted, or none.
    """
    if hazard.ndim != 1 or len(hazard) == 0 or not ((hazard >= 0) & (hazard <= 1)).all():
        raise InputError("hazards by depth", hazard.tolist(), "chances from 0 to 1, one a depth, are needed")
    pool = Tree(len(hazard), topk, nodes).nodes
    if not 1 <= nodes <= pool:
        raise InputError(
            "nodes verified", nodes, f"a tree of depth {len(hazard)} and topk {topk} drafts {pool}"
        )
    chance, parent, depth = [1.0], [-1], [0]
    beam = [0]
    for level, ranks in enumerate(rank_chances(hazard, ratios).T, start=1):
        first = len(chance)
        for node in beam:
            for rank in ranks:
                chance.append(chance[node] * float(rank))
                parent.append(node)
                depth.append(level)
        order = np.argsort(-np.array(chance[first:]), kind="stable")[:topk]
        beam = [first + int(at) for at in order]
    chances, parents, depths = np.array(chance), np.array(parent), np.array(depth)
    best = 1 + np.argsort(-chances[1:], kind="stable")[:nodes]
    return _summed(chances, parents, depths, best, ratios)


def _summed(
    chance: Floats,
    parent: NDArray[np.int64],
    depth: NDArray[np.int64],
    kept: NDArray[np.int64],
    ratios: Floats,
) -> DraftTree:
    """Marginals and child counts of the nodes ``kept``; node 0 is the root, which is always right."""
    deepest, topk = int(depth.max()), len(ratios) + 1
    accepted = np.asarray(np.bincount(depth[kept] - 1, chance[kept], deepest), np.float64)
    count = np.bincount(parent[kept], minlength=len(chance))
    children = np.zeros((deepest, topk + 1))
    for node in (0, *kept):
        if depth[node] < deepest:
            children[depth[node], count[node]] += chance[node]
    total = children.sum(axis=1, keepdims=True)
    none = np.eye(topk + 1)[:1]  # a depth that no accepted node reaches has no children
    children = np.where(total > 0, children / np.where(total > 0, total, 1.0), none)
    return DraftTree(ratios, accepted, children)


def tree_model(
    model: TraceModel, proposer: str, tree: Tree, ratios: tuple[float, ...] = RANK_RATIOS
) -> TraceModel:
    """The trace model of a head's tree, called ``proposer``, from the one of its chain.

    In every cell of every state the hazard becomes the chance that one of the tree's branches there is right.
    What the model remembers from one position to the next, and how requests differ, stays the chain's. A step
    verifies ``tree.verified`` nodes and accepts at most ``tree.depth``: only at that K do its traces hold.

    Raises:
        InputError: a lookup's model, a tree deeper than the model is known, or more nodes than it drafts.
    """
    if model.lookup is not None:
        raise InputError("trace model", model.proposer, "a lookup drafts no tree", "give the model of a head")
    if tree.depth > model.known_k:
        raise InputError(
            "tree depth", tree.depth, f"the acceptance of {model.proposer} is known up to K = {model.known_k}"
        )
    wide = ratios_of(tree.topk, ratios)
    hazard = np.stack([_widened(state, model.recorded_k, tree, wide) for state in model.hazard])
    note = (
        f"SGLang's tree of {tree.verified} nodes (depth {tree.depth}, topk {tree.topk}) on the model of "
        f"{model.proposer} ({model.provenance.source}); hazards of rank 2 and of later ones are "
        f"{_listed(ratios)} times the first's ({RATIOS_FROM.source}), assumed to hold here"
    )
    return replace(
        model,
        proposer=proposer,
        known_k=tree.depth,
        hazard=hazard,
        provenance=Provenance(Kind.ASSUMED, f"derived from the chain of {model.proposer}", note),
        facts={
            "tree": asdict(tree),
            "rank_ratios": list(ratios),
            "chain": model.proposer,
        },
    )


def _listed(ratios: tuple[float, ...]) -> str:
    return ", ".join(f"{ratio:g}" for ratio in ratios)


def _widened(hazard: Floats, recorded_k: int, tree: Tree, ratios: Floats) -> Floats:
    """The (cells,) hazards of a state, those of drafts up to the tree's depth those of its branches.

    A cell says what the position before showed, which the head's confidence knows too: where a draft was
    confirmed, failed or unseen, those before it were confirmed, and nothing is known of those behind it. The
    tree of a cell is drawn by the hazards of these. The tail knows no depth and stays as it is.
    """

    def by_depth(low: int) -> Floats:
        return hazard[low : low + tree.depth]

    first = hazard[cells.FIRST : cells.CONFIRMED].reshape(cells.AGES, cells.OFFERS)
    new = np.concatenate([[first[:, cells.offer_bin(recorded_k)].mean()], by_depth(cells.NEW)[1:]])
    confirmed = by_depth(cells.CONFIRMED)

    def drawn(chain: Floats) -> DraftTree:
        return draft_tree(chain, len(ratios) + 1, tree.verified, ratios)

    wide = hazard.copy()
    fresh = drawn(new)
    wide[cells.FIRST : cells.CONFIRMED] = fresh.conditional(1, hazard[cells.FIRST : cells.CONFIRMED])
    for depth in range(1, tree.depth + 1):
        wide[cells.NEW + depth - 1] = fresh.conditional(depth, new[depth - 1])
        for low in (cells.CONFIRMED, cells.FAILED, cells.UNSEEN):
            here = by_depth(low)[depth - 1 : depth]
            shape = drawn(np.concatenate([confirmed[: depth - 1], here, new[depth:]]))
            wide[low + depth - 1] = shape.conditional(depth, here[0])
    return wide
