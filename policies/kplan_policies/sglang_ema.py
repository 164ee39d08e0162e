"""SGLang's adaptive speculation: per batch-size slot, an EMA of accepted drafts climbs a ladder of K."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np

from kplan.policy import ACCEPTED, BATCH, F64, I64, PolicyInfo, Rule
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_int
from kplan_policies.sglang_ladder import DEFAULT_LADDER, Slot, load_ladder, parse_ladder, read_slots

GRAPH_SIZES = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))
"""Decode CUDA-graph batch sizes that SGLang 0.5.23 captures: 1-8, 10..32 by 2, 40..64 by 4, 72..256 by 8."""

# columns of the rule's state, one row per slot
_FROM_BATCH: Final = 0  # smallest batch that is routed to it
_K: Final = 1
_EMA: Final = 2  # of accepted drafts
_VERIFIES: Final = 3  # seen
_ALPHA: Final = 4
_INTERVAL: Final = 5
_WARMUP: Final = 6
_DOWN: Final = 7
_UP: Final = 8
_CEILING: Final = 9
_CANDIDATES: Final = 10  # how many K it may choose ...
_FIRST: Final = 11  # ... and these, ascending, from here on


class SglangEma(RulePolicy):
    """The rule of ``adaptive_spec_params.py`` in SGLang 0.5.23, decision for decision.

    It knows nothing of overlap scheduling: the engine tells it of a step as late as the server would.
    SGLang counts the decode batch; ``step.batch`` and ``outcome.batch`` are taken for it.

    Args:
        ladder: adaptive config as in SGLang's JSON; None is the shipped default.
        start: ``--speculative-num-steps``, the first K of the slots that have it; None is the middle one of
            all candidates. A slot without it starts at the middle of its own.
        graph_sizes: captured decode-graph batch sizes; a batch is routed by the size it is padded to.
        ema_alpha: weight of the newest verify, where the ladder does not set it.
        update_interval: verifies between decisions, where the ladder does not set it.
        warmup_batches: verifies before the first interval begins, where the ladder does not set it.

    Raises:
        ValueError: a config that :func:`kplan_policies.sglang_ladder.read_slots` refuses, or a start that no
            slot has.
    """

    name: ClassVar[str] = "sglang-ema"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="SGLang's adaptive steps: an EMA of accepted drafts climbs a ladder of K per batch-size slot",
        source="SGLang 0.5.23 adaptive_spec_params.py; its shipped ladder, or sglang-ema:FILE.json",
        engines=("sglang",),
    )

    def __init__(
        self,
        ladder: Mapping[str, Any] | None = None,
        start: int | None = None,
        graph_sizes: Sequence[int] = GRAPH_SIZES,
        ema_alpha: Annotated[float, FloatRange(0.02, 1.0, log=True)] = 0.2,
        update_interval: Annotated[int, IntRange(1, 50)] = 5,
        warmup_batches: Annotated[int, IntRange(0, 50)] = 10,
    ) -> None:
        own = (ema_alpha, update_interval, warmup_batches)
        shared = dict(zip(("ema_alpha", "update_interval", "warmup_batches"), own, strict=True))
        read_slots({**DEFAULT_LADDER, **shared})  # so that a bad value is refused even if the ladder hides it
        self.ladder = None if ladder is None else _copy(ladder)
        self._config = {**shared, **_copy(DEFAULT_LADDER if ladder is None else ladder)}
        slots = read_slots(self._config)
        union = sorted({k for slot in slots for k in slot.candidate_steps})
        if start is not None and start not in union:
            raise ValueError(f"start must be one of the ladder's candidate_steps {union}, not {start}")
        self.start = start
        self.graph_sizes = tuple(sorted(checked_int("a graph size", size, 1) for size in graph_sizes))
        self.ema_alpha, self.update_interval, self.warmup_batches = ema_alpha, update_interval, warmup_batches
        self.initial_k = union[len(union) // 2] if start is None else start
        self.max_k = union[-1]
        self._rule = Rule(_state(slots, self.initial_k, self.graph_sizes), _choose, _learn)

    @classmethod
    def from_arg(cls, arg: str) -> dict[str, Any]:
        """Constructor arguments out of the path of an adaptive JSON, or out of that JSON itself."""
        return {"ladder": parse_ladder(arg) if arg.lstrip().startswith("{") else load_ladder(Path(arg))}

    def config(self) -> dict[str, Any]:
        """The adaptive config in force, as SGLang's ``--speculative-adaptive-config`` file holds it."""
        return _copy(self._config)


def _choose(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    slot = np.searchsorted(state[:, _FROM_BATCH], step[BATCH], side="right") - 1
    return int(state[slot, _K])


def _learn(state: F64, step: F64, outcome: I64) -> None:
    """Take the mean accepted drafts of one verify (bonus excluded), and decide when it is time."""
    if len(outcome) == 0:
        return
    slot = state[np.searchsorted(state[:, _FROM_BATCH], step[BATCH], side="right") - 1]
    k, alpha = slot[_K], slot[_ALPHA]
    if k > 0:  # nothing was drafted at K = 0, so the EMA is frozen there
        slot[_EMA] = (1 - alpha) * slot[_EMA] + alpha * (outcome[:, ACCEPTED].sum() / len(outcome))
    slot[_VERIFIES] += 1
    late = slot[_VERIFIES] - slot[_WARMUP]
    if late <= 0 or late % slot[_INTERVAL] != 0:
        return
    steps = slot[_FIRST : _FIRST + int(slot[_CANDIDATES])]
    last = len(steps) - 1
    here = i = int(np.searchsorted(steps, k))
    if k == 0:  # it always tries the next candidate, with the EMA lifted to what that K would need to stay
        i = min(here + 1, last)
        if steps[i] > 0 and slot[_EMA] < 0:
            slot[_EMA] = steps[i] - 1
    else:
        while i > 0 and slot[_EMA] <= (steps[i - 1] - 0.5 if steps[i - 1] > 0 else 0.5) + slot[_DOWN]:
            i -= 1
        if i == here:
            while i < last and slot[_EMA] > steps[i] - 0.5 + slot[_UP]:
                i += 1
        if slot[_CEILING] > 0:
            ceiling = max(1, ceil(slot[_EMA] * slot[_CEILING]))
            if ceiling < steps[i] <= k:
                while i > 0 and steps[i] > ceiling:
                    i -= 1
    slot[_K] = steps[i]


def _state(slots: Sequence[Slot], initial_k: int, graph_sizes: Sequence[int]) -> F64:
    """(slots, columns) state of slots that saw nothing, by ascending batch."""
    state = np.zeros((len(slots), _FIRST + max(len(slot.candidate_steps) for slot in slots)))
    for row, slot in zip(state, slots, strict=True):
        steps = slot.candidate_steps
        k = initial_k if initial_k in steps else steps[len(steps) // 2]
        row[_FROM_BATCH] = _smallest_batch(slot.batch, graph_sizes)
        row[_K], row[_EMA] = k, k - 1
        row[_ALPHA], row[_INTERVAL], row[_WARMUP] = slot.ema_alpha, slot.update_interval, slot.warmup_batches
        row[_DOWN], row[_UP], row[_CEILING] = slot.down_hysteresis, slot.up_hysteresis, slot.ceiling_coeff
        row[_CANDIDATES] = len(steps)
        row[_FIRST : _FIRST + len(steps)] = steps
    state[0, _FROM_BATCH] = 0  # a batch below every slot goes to the smallest
    return state


def _smallest_batch(key: int, graph_sizes: Sequence[int]) -> int:
    """The smallest batch whose padded size reaches ``key``: one above the last graph that does not.

    Above every graph nothing is padded, so there the key itself is the smallest.
    """
    below = [size for size in graph_sizes if size < key]
    return max(below, default=0) + 1 if len(below) < len(graph_sizes) else key


def _copy(record: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        raise ValueError(f"the ladder must be a mapping such as SGLang's adaptive JSON, not {record!r}")  # noqa: TRY004 - input
    copied: dict[str, Any] = json.loads(json.dumps(dict(record)))
    return copied
