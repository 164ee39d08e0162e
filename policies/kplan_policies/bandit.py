"""Bandits over K: per bin of batch sizes, arms K = 0..largest, paid in tokens per second, dear to switch."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Final

import numpy as np

from kplan.policy import (
    ACCEPTED,
    BATCH,
    F64,
    I64,
    MAX_K,
    STEP_S,
    Choose,
    PolicyInfo,
    Rule,
)
from kplan.space import FloatRange, IntRange
from kplan_policies._rule import RulePolicy
from kplan_policies._text import checked_float, checked_int, checked_k

_BINS: Final = 11
"""Bins of batch sizes: 1, 2-3, 4-7, ... and 1,024 or more."""

SETTLE: Final = 2
"""Steps after a pull that are not counted: K is verified one step later, and overlap hears one later."""

_MODULUS: Final = 2_147_483_647
_MULTIPLIER: Final = 48_271
"""Lehmer's generator with the constants of C++'s minstd_rand: whole numbers that a float64 holds exactly."""

# the rule's state: parameters and the pull under way in its first row ...
_LARGEST: Final = 0
_DWELL: Final = 1
_SWITCH_COST: Final = 2
_MEMORY: Final = 3
_EXPLORE: Final = 4
_ARM: Final = 5
_BIN: Final = 6
_STEPS: Final = 7  # heard of since the arm was pulled
_TOKENS: Final = 8  # per request, in the steps counted ...
_SECONDS: Final = 9  # ... and how long they took
_RANDOM: Final = 10
# ... and two rows per bin: pulls and rewards of each arm, both decayed
_COLUMNS: Final = 11


def _rule(choose: Choose, largest: int, dwell: int, switch_cost: float, memory: float, explore: float,
          seed: int = 0) -> Rule:  # fmt: skip
    state = np.zeros((1 + 2 * _BINS, max(_COLUMNS, largest + 1)))
    state[0, :_ARM] = largest, dwell, switch_cost, memory, explore
    state[0, _STEPS] = SETTLE + dwell  # no pull under way
    state[0, _RANDOM] = np.random.default_rng(seed).integers(1, _MODULUS)  # far apart for near seeds
    return Rule(state, choose, _learn)


class Ucb(RulePolicy):
    """One K for the batch: the arm with the highest upper confidence bound of its reward, by batch bin.

    The reward of a pull is the output tokens per request and second over ``dwell`` steps, as a share of the
    bin's best mean. An arm never pulled comes first, the smallest K before the others. The bound of an arm
    is its mean + explore x sqrt(ln(pulls of the bin + 1) / pulls of the arm); pulls fade by ``memory``, so
    what changed is found again. Another arm than the present one must win by ``switch_cost``.

    Args:
        largest: the last arm; never above max_k.
        dwell: steps of a pull that are counted.
        switch_cost: share of the best reward that a switch must gain.
        memory: of a bin's earlier pulls, per pull.
        explore: weight of the confidence term.

    Raises:
        ValueError: largest outside 0..254, dwell below 1, switch_cost or explore outside 0..10, memory
            outside 0.5..1.
    """

    name: ClassVar[str] = "ucb"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="UCB bandit over K per batch bin, paid in tokens per second, with a switching cost",
        source="interpretation of BanditSpec (arXiv:2505.15141) and Nightjar (arXiv:2512.22420), second-hand",
        why_not="no released engine has a bandit (SGLang PR #18284 is unmerged)",
    )

    def __init__(
        self,
        largest: Annotated[int, IntRange(2, 10)] = 5,
        dwell: Annotated[int, IntRange(2, 64)] = 8,
        switch_cost: Annotated[float, FloatRange(0.0, 0.2)] = 0.02,
        memory: Annotated[float, FloatRange(0.9, 1.0)] = 0.98,
        explore: Annotated[float, FloatRange(0.01, 1.0, log=True)] = 0.1,
    ) -> None:
        self.largest = checked_k(largest)
        self.dwell = checked_int("dwell", dwell, 1)
        self.switch_cost = checked_float("switch_cost", switch_cost, 0.0, 10.0)
        self.memory = checked_float("memory", memory, 0.5, 1.0)
        self.explore = checked_float("explore", explore, 0.0, 10.0)
        self._rule = _rule(_choose_ucb, self.largest, self.dwell, self.switch_cost, self.memory, self.explore)


class Thompson(RulePolicy):
    """One K for the batch: the arm with the highest draw from what is believed of its reward, by batch bin.

    Rewards, arms, memory and switching cost are those of :class:`Ucb`. The belief of an arm is a normal
    around its mean with deviation ``spread`` / sqrt(pulls); a draw is a sum of twelve uniform numbers from a
    generator in the policy's own state, so a run can be repeated byte for byte.

    Args:
        largest: the last arm; never above max_k.
        dwell: steps of a pull that are counted.
        switch_cost: share of the best reward that a switch must gain.
        memory: of a bin's earlier pulls, per pull.
        spread: deviation of one pull's reward, as a share of the best.
        seed: of the draws.

    Raises:
        ValueError: largest outside 0..254, dwell below 1, switch_cost or spread outside 0..10, memory
            outside 0.5..1, seed below 0.
    """

    name: ClassVar[str] = "thompson"
    info: ClassVar[PolicyInfo] = PolicyInfo(
        summary="Thompson-sampling bandit over K per batch bin, with a switching cost",
        source="interpretation of the bandits of BanditSpec and Nightjar (arXiv:2512.22420), second-hand",
        why_not="no released engine has a bandit (SGLang PR #18284 is unmerged)",
    )

    def __init__(
        self,
        largest: Annotated[int, IntRange(2, 10)] = 5,
        dwell: Annotated[int, IntRange(2, 64)] = 8,
        switch_cost: Annotated[float, FloatRange(0.0, 0.2)] = 0.02,
        memory: Annotated[float, FloatRange(0.9, 1.0)] = 0.98,
        spread: Annotated[float, FloatRange(0.01, 1.0, log=True)] = 0.1,
        seed: int = 0,
    ) -> None:
        self.largest = checked_k(largest)
        self.dwell = checked_int("dwell", dwell, 1)
        self.switch_cost = checked_float("switch_cost", switch_cost, 0.0, 10.0)
        self.memory = checked_float("memory", memory, 0.5, 1.0)
        self.spread = checked_float("spread", spread, 0.0, 10.0)
        self.seed = checked_int("seed", seed, 0, 2**63 - 1)
        self._rule = _rule(
            _choose_thompson, self.largest, self.dwell, self.switch_cost, self.memory, self.spread, self.seed
        )


def _choose_ucb(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    if own[_STEPS] < SETTLE + own[_DWELL]:
        return int(own[_ARM])
    size, at = int(step[BATCH]), 0
    while size > 1 and at < _BINS - 1:
        size //= 2
        at += 1
    pulls, rewards = state[1 + 2 * at], state[2 + 2 * at]
    arms = int(min(own[_LARGEST], step[MAX_K])) + 1
    total, best_mean, fresh = 0.0, 0.0, -1
    for k in range(arms - 1, -1, -1):
        total += pulls[k]
        if pulls[k] == 0:
            fresh = k
        else:
            best_mean = max(best_mean, rewards[k] / pulls[k])
    arm, best = fresh, -math.inf
    if fresh < 0:
        for k in range(arms):
            score = rewards[k] / pulls[k] / best_mean
            score += own[_EXPLORE] * math.sqrt(math.log(total + 1.0) / pulls[k])
            if k == own[_ARM]:
                score += own[_SWITCH_COST]
            if score > best:
                arm, best = k, score
    own[_ARM], own[_BIN] = arm, at
    own[_STEPS] = own[_TOKENS] = own[_SECONDS] = 0.0
    return arm


def _choose_thompson(state: F64, step: F64, seen: I64, prices: F64, k_each: I64) -> int:  # noqa: ARG001 - a rule's signature
    own = state[0]
    if own[_STEPS] < SETTLE + own[_DWELL]:
        return int(own[_ARM])
    size, at = int(step[BATCH]), 0
    while size > 1 and at < _BINS - 1:
        size //= 2
        at += 1
    pulls, rewards = state[1 + 2 * at], state[2 + 2 * at]
    arms = int(min(own[_LARGEST], step[MAX_K])) + 1
    best_mean, fresh = 0.0, -1
    for k in range(arms - 1, -1, -1):
        if pulls[k] == 0:
            fresh = k
        else:
            best_mean = max(best_mean, rewards[k] / pulls[k])
    arm, best = fresh, -math.inf
    if fresh < 0:
        random = int(own[_RANDOM])
        for k in range(arms):
            normal = -6.0
            for _ in range(12):
                random = random * _MULTIPLIER % _MODULUS
                normal += random / _MODULUS
            score = rewards[k] / pulls[k] / best_mean + own[_EXPLORE] * normal / math.sqrt(pulls[k])
            if k == own[_ARM]:
                score += own[_SWITCH_COST]
            if score > best:
                arm, best = k, score
        own[_RANDOM] = random
    own[_ARM], own[_BIN] = arm, at
    own[_STEPS] = own[_TOKENS] = own[_SECONDS] = 0.0
    return arm


def _learn(state: F64, step: F64, outcome: I64) -> None:
    own = state[0]
    if len(outcome) == 0 or own[_STEPS] >= SETTLE + own[_DWELL]:
        return
    own[_STEPS] += 1
    if own[_STEPS] > SETTLE:
        tokens = 0
        for i in range(len(outcome)):
            tokens += outcome[i, ACCEPTED] + 1
        own[_TOKENS] += tokens / len(outcome)
        own[_SECONDS] += step[STEP_S]
    if own[_STEPS] < SETTLE + own[_DWELL]:
        return
    pulls, rewards = state[1 + 2 * int(own[_BIN])], state[2 + 2 * int(own[_BIN])]
    for k in range(int(own[_LARGEST]) + 1):
        pulls[k] *= own[_MEMORY]
        rewards[k] *= own[_MEMORY]
    pulls[int(own[_ARM])] += 1.0
    rewards[int(own[_ARM])] += own[_TOKENS] / own[_SECONDS]
