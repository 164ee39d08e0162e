"""SGLang's adaptive speculation: per batch-size slot, an EMA of accepted drafts climbs a ladder of K."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Annotated, Any, ClassVar

from kplan.policy import PolicyInfo, StepOutcome, StepView
from kplan.space import FloatRange, IntRange
from kplan_policies._text import checked_int, policy_text
from kplan_policies.sglang_ladder import DEFAULT_LADDER, Slot, load_ladder, parse_ladder, read_slots

GRAPH_SIZES = (*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8))
"""Decode CUDA-graph batch sizes that SGLang 0.5.23 captures: 1-8, 10..32 by 2, 40..64 by 4, 72..256 by 8."""


class SglangEma:
    """The rule of ``adaptive_spec_params.py`` in SGLang 0.5.23, decision for decision.

    It knows nothing of overlap scheduling: the engine calls :meth:`observe` as late as the server would.
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
        self._keys = [slot.batch for slot in slots]
        self._tiers = [_Tier(slot, self.initial_k) for slot in slots]

    @classmethod
    def from_arg(cls, arg: str) -> dict[str, Any]:
        """Constructor arguments out of the path of an adaptive JSON, or out of that JSON itself."""
        return {"ladder": parse_ladder(arg) if arg.lstrip().startswith("{") else load_ladder(Path(arg))}

    @property
    def text(self) -> str:
        """``sglang-ema``, with the values that are not the default's; a ladder is written out in full."""
        return policy_text("sglang-ema", self)

    def config(self) -> dict[str, Any]:
        """The adaptive config in force, as SGLang's ``--speculative-adaptive-config`` file holds it."""
        return _copy(self._config)

    def choose_k(self, step: StepView) -> int:
        """Current K of the slot that this batch is routed to."""
        return self._tier(step.batch).k

    def observe(self, outcome: StepOutcome) -> None:
        """Feed one verify to the slot of its batch; a step in which nothing decoded is none."""
        if len(outcome.request):
            self._tier(outcome.batch).observe(float(outcome.accepted.sum()) / len(outcome.request))

    def _tier(self, batch: int) -> _Tier:
        at = bisect_left(self.graph_sizes, batch)
        padded = self.graph_sizes[at] if at < len(self.graph_sizes) else batch
        return self._tiers[max(bisect_right(self._keys, padded) - 1, 0)]


class _Tier:
    """State of one slot: its K, the EMA of accepted drafts and the verifies seen."""

    def __init__(self, slot: Slot, start: int) -> None:
        steps = slot.candidate_steps
        self._slot = slot
        self.k = start if start in steps else steps[len(steps) // 2]
        self.ema = float(self.k - 1)
        self.verifies = 0

    def observe(self, accepted: float) -> None:
        """Take the mean accepted drafts of one verify (bonus excluded), and decide when it is time."""
        slot = self._slot
        if self.k > 0:  # nothing was drafted at K = 0, so the EMA is frozen there
            self.ema = (1 - slot.ema_alpha) * self.ema + slot.ema_alpha * accepted
        self.verifies += 1
        late = self.verifies - slot.warmup_batches
        if late > 0 and late % slot.update_interval == 0:
            self.k = self._probe() if self.k == 0 else self._climb()

    def _probe(self) -> int:
        """K = 0 always tries the next candidate, with the EMA lifted to what that K would need to stay."""
        steps = self._slot.candidate_steps
        k = steps[min(steps.index(0) + 1, len(steps) - 1)]
        if k > 0 and self.ema < 0:
            self.ema = float(k - 1)
        return k

    def _climb(self) -> int:
        slot, steps = self._slot, self._slot.candidate_steps
        here = i = steps.index(self.k)
        while i > 0 and self.ema <= (steps[i - 1] - 0.5 if steps[i - 1] else 0.5) + slot.down_hysteresis:
            i -= 1
        if i == here:
            while i < len(steps) - 1 and self.ema > steps[i] - 0.5 + slot.up_hysteresis:
                i += 1
        if slot.ceiling_coeff > 0:
            ceiling = max(1, ceil(self.ema * slot.ceiling_coeff))
            if ceiling < steps[i] <= self.k:
                while i > 0 and steps[i] > ceiling:
                    i -= 1
        return steps[i]


def _copy(record: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(record, Mapping):
        raise ValueError(f"the ladder must be a mapping such as SGLang's adaptive JSON, not {record!r}")  # noqa: TRY004 - input
    copied: dict[str, Any] = json.loads(json.dumps(dict(record)))
    return copied
