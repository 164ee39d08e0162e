"""A made-up server that drives a policy: batches grow and shrink, requests leave and come back.

Nothing here prices or schedules like an engine; it only keeps the promises of :mod:`kplan.policy`: K chosen
in one step is verified in the next, and no more is heard of than was verified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from kplan.engine.asking import parted, seat_proposer, seated
from kplan.policy import F64, I64, Observer, Policy, PolicyInfo, StepOutcome, StepView

SEATS: Final = 48
ERA: Final = 1 << 16
"""Request numbers jump by so much now and then: memory by number modulo a power of two meets itself again."""

PROPOSERS: Final = ("lookup", "model")

Answers = list[list[int]]
"""K of each request of the batch, cut at max_k, at every step; then its proposer where the policy chooses."""

Hook = Callable[[str, StepView | StepOutcome, dict[str, Any]], None]
"""Is given the name of the method that was called, what it was given, and copies of its fields before."""


@dataclass(frozen=True)
class LinearCost:
    """Step seconds linear in the tokens verified and in the depth of the draft."""

    batch: int

    def seconds(self, k: int) -> float:
        """Seconds at ``k`` drafts per request."""
        return self.seconds_at(self.batch * (k + 1), k)

    def seconds_by_k(self, max_k: int) -> F64:
        """(max_k + 1,) the same of K = 0..max_k."""
        return np.array([self.seconds(k) for k in range(max_k + 1)])

    def seconds_at(self, tokens: int, depth: int) -> float:
        """Seconds of verifying ``tokens`` and drafting ``depth`` deep."""
        return 0.006 + 2e-5 * tokens + 4e-4 * depth

    def seconds_of_mixes(self, tokens: I64, depth: I64, drafting: I64) -> F64:
        """(n,) the same where only ``drafting`` requests draft with the model drafter."""
        return 0.006 + 2e-5 * tokens + 4e-4 * np.where(drafting > 0, depth, 0)


@dataclass(frozen=True)
class Scene:
    """What happens, whatever the policy does; T steps, S seats, P = 2 proposers.

    Attributes:
        max_k: of the server.
        seats: by step, the requests of its batch, ascending.
        era: (T,) added to their numbers, in units of ERA.
        match: (T, S) drafts that the lookup has.
        depth: (P, T, S) drafts that a verification in this step accepts when it is given more.
        ahead: (P, T, S) what is shown as ``future_accepted``.
        prefills: (T,) requests at the end of the batch that prefill instead of decoding.
    """

    max_k: int
    seats: tuple[I64, ...]
    era: I64
    match: I64
    depth: I64
    ahead: I64
    prefills: I64


def make_scene(seed: int, *, max_k: int = 7, steps: int = 150, seats: int = SEATS) -> Scene:
    """A scene that starts with one request, grows to a full batch, empties, and then varies at random."""
    rng = np.random.default_rng(seed)
    third = max(steps // 3, 1)
    ramp = np.interp(np.arange(third), [0, third / 2, third], [1, seats, 1]).astype(np.int64)
    sizes = np.concatenate([ramp, rng.integers(1, seats + 1, max(steps - third, 0))])[:steps]
    depth = rng.integers(0, 9, (len(PROPOSERS), steps + 1, seats))
    return Scene(
        max_k=max_k,
        seats=tuple(np.sort(rng.choice(seats, size, replace=False)) for size in sizes),
        era=np.arange(steps) // max(steps // 4, 1),
        match=rng.integers(0, 9, (steps, seats)),
        depth=depth[:, :-1],
        ahead=depth[:, 1:],
        prefills=np.where(rng.random(steps) < 0.1, sizes, rng.integers(0, 2, steps) * (sizes > 1)),
    )


def scrambled(scene: Scene, now: int, seed: int) -> Scene:
    """The same scene with another future: other acceptance from step ``now`` on, another one shown at all."""
    rng = np.random.default_rng(seed)
    depth = scene.depth.copy()
    depth[:, now:] = rng.integers(0, 9, depth[:, now:].shape)
    return replace(scene, depth=depth, ahead=rng.integers(0, 9, depth.shape))


def drive(policy: Policy, scene: Scene, info: PolicyInfo, hook: Hook | None = None) -> Answers:
    """Every answer of ``policy`` over the scene.

    Args:
        info: says whether it is shown the future, and both proposers or the model drafter alone.
        hook: called after every call of the policy.

    Raises:
        InputError: an answer that the engine refuses.
    """
    told: Answers = []
    names = PROPOSERS if info.combines else PROPOSERS[1:]
    depth, ahead = scene.depth[-len(names) :], scene.ahead[-len(names) :]
    seats = depth.shape[2]
    emitted, offered, who = (np.zeros(seats, np.int64) for _ in range(3))
    last = np.zeros((2, seats), np.int64)
    era = 0
    for at, batch in enumerate(scene.seats):
        if scene.era[at] != era:  # everybody left: the same seats hold new requests
            era = int(scene.era[at])
            emitted[:] = offered[:] = last[:] = 0
        room = np.full((len(names), len(batch)), scene.max_k)
        if info.combines:
            room[0] = np.minimum(scene.match[at, batch], scene.max_k)
        future = np.minimum(ahead[:, at, batch], room) if info.needs_future else None
        step = StepView(
            now_s=0.01 * at, batch=len(batch), waiting=at % 3, kv_free_tokens=16 * (at % 50),
            max_k=scene.max_k, request=batch + era * ERA, position=emitted[batch],
            context=100 + 7 * batch + emitted[batch], last_proposed=last[0, batch],
            last_accepted=last[1, batch], cost=LinearCost(len(batch)),
            future_accepted=None if future is None else future[-1], proposers=names,
            lookups=tuple(name == "lookup" for name in names), offered=room.copy(), future_by_proposer=future,
        )  # fmt: skip
        before = _copied(step) if hook else {}
        chosen = policy.choose_k(step)
        if hook is not None:
            hook("choose_k", step, before)
        index, k = _checked(chosen, names, len(batch), scene.max_k, policy, info)
        told.append([*k.tolist(), *(index.tolist() if info.combines else ())])
        decoding = batch[: len(batch) - scene.prefills[at]]
        accepted = np.minimum(depth[who[decoding], at, decoding], offered[decoding])
        ran = StepOutcome(
            batch=len(batch), step_s=0.01 + 1e-4 * (at % 7), request=decoding + era * ERA,
            proposed=offered[decoding], accepted=accepted, proposer=who[decoding],
        )  # fmt: skip
        last[:, decoding] = offered[decoding], accepted
        emitted[decoding] += accepted + 1
        offered[batch], who[batch] = np.minimum(k, room[index, np.arange(len(batch))]), index
        if isinstance(policy, Observer):
            before = _copied(ran) if hook else {}
            policy.observe(ran)
            if hook is not None:
                hook("observe", ran, before)
    return told


def _checked(
    chosen: object, names: tuple[str, ...], batch: int, most: int, policy: Policy, info: PolicyInfo
) -> tuple[I64, I64]:
    """(B,) index of the proposer and (B,) K cut at ``most``, by the engine's own checks."""
    rows = np.arange(batch)
    index, k = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    if info.combines:
        who, chosen = parted(chosen, names, policy)
        seat_proposer(who, names, rows, index, policy)
    highest, each = seated(chosen, rows, most, k, policy)
    if not each:
        k[:] = highest
    return index, k


def _copied(seen: StepView | StepOutcome) -> dict[str, Any]:
    values = {field.name: getattr(seen, field.name) for field in fields(seen)}
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in values.items()}
