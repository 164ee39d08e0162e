"""A rule gives the same bytes compiled and called from Python, whatever the load, the lag and the flavour."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.engine import BatchCost, Limits, Load, Replica, kernel
from kplan.errors import InputError
from kplan.jit import compiles
from kplan.policy import (
    ACCEPTED,
    BATCH,
    CONTEXT,
    KV_FREE_TOKENS,
    LAST_ACCEPTED,
    LAST_PROPOSED,
    MAX_K,
    NOW_S,
    PER_REQUEST,
    POSITION,
    PROPOSED,
    REQUEST,
    STEP_S,
    WAITING,
    Policy,
    Rule,
    StepOutcome,
    StepView,
)
from kplan_policies.goodput import Goodput
from kplan_policies.heuristic import Heuristic
from kplan_policies.sglang_ema import SglangEma
from tests.engine.scenes import bounds, make_load, price, scenes

MANY = settings(max_examples=150, deadline=None)
needs_numba = pytest.mark.skipif(
    not compiles(), reason="NUMBA_DISABLE_JIT: numba compiles nothing, so refuses nothing"
)


def both_paths_agree(
    make: Callable[[], Policy], load: Load, limits: Limits, *, lag: int = 0, pause_s: float = np.inf
) -> None:
    """The compiled path, paused every ``pause_s``, and the Python path end in the same bytes everywhere."""
    fast, slow = (
        Replica(load, limits, price(), make(), observe_lag=lag, compiled=compiled)
        for compiled in (True, False)
    )
    until = pause_s
    while fast.advance(until) == kernel.PAUSED:
        until = max(until, fast.clock_s) + pause_s
    assert slow.advance() == kernel.DONE
    assert fast.done
    assert fast.requests.tobytes() == slow.requests.tobytes()
    if pause_s == np.inf:  # a pause moves the clock of an idle replica
        for a, b in zip(fast.machine, slow.machine, strict=True):
            assert a.tobytes() == b.tobytes()
    rules = [replica._policy.compiled() for replica in (fast, slow)]
    assert rules[0].state.tobytes() == rules[1].state.tobytes()


def choose_by_all(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    """A K out of everything that is shown, one for all in every third step; ``state`` sums what was seen."""
    own = state[0]
    own[0] += 1
    own[1] += step[NOW_S] + 2 * step[BATCH] + 3 * step[WAITING] + 5 * step[KV_FREE_TOKENS] + 7 * step[MAX_K]
    for k in range(len(prices)):
        own[2] += prices[k] * (k + 1)
    if own[0] % 3 == 0:
        return int(own[1] + own[3]) % 11
    for i in range(len(seen)):
        mix = seen[i, REQUEST] + 2 * seen[i, POSITION] + 3 * seen[i, CONTEXT]
        k_each[i] = (mix + 5 * seen[i, LAST_PROPOSED] + 7 * seen[i, LAST_ACCEPTED] + int(own[3])) % 11
    return PER_REQUEST


def learn_all(state, step, outcome):  # type: ignore[no-untyped-def]  # read by numba
    """Sum what is heard, in the order in which it is heard."""
    own = state[0]
    own[3] = own[3] % 1000 + 3 * step[BATCH]
    own[4] = own[4] / 2 + step[STEP_S]
    for i in range(len(outcome)):
        own[3] += outcome[i, REQUEST] + 2 * outcome[i, PROPOSED] + 5 * outcome[i, ACCEPTED]


class SeesAll:
    def __init__(self) -> None:
        self.rule = Rule(np.zeros((1, 5)), choose_by_all, learn_all, priced=True)

    def compiled(self) -> Rule:
        return self.rule

    def choose_k(self, step: StepView) -> object:
        return self.rule.choose_k(step)

    def observe(self, outcome: StepOutcome) -> None:
        self.rule.observe(outcome)


POLICIES: list[Callable[[], Policy]] = [
    SglangEma,
    lambda: SglangEma({"1": {"candidate_steps": [0, 2, 5]}, "4": {"candidate_steps": [1, 3]},
                       "warmup_batches": 1, "update_interval": 2, "ceiling_coeff": 0.8}),
    Goodput,
    lambda: Goodput(weight=0.5, start_acceptance=0.1, probe_every=3),
    Heuristic,
    lambda: Heuristic(start=1, up=3, down=2),
    SeesAll,
]  # fmt: skip
NAMES = ["sglang", "sglang-knobs", "goodput", "goodput-knobs", "heuristic", "heuristic-knobs", "sees-all"]


@pytest.mark.parametrize("make", POLICIES, ids=NAMES)
@given(scene=scenes(), lag=st.integers(0, 2), pause_s=st.one_of(st.just(np.inf), st.floats(0.001, 0.5)))
@MANY
def test_both_paths_agree(
    make: Callable[[], Policy], scene: tuple[Load, Limits], lag: int, pause_s: float
) -> None:
    both_paths_agree(make, *scene, lag=lag, pause_s=pause_s)


def test_what_a_rule_sees_and_hears_moves_its_answers() -> None:
    """Guards the property above: its policy's answers vary, per request and for all, and reach the engine."""
    load = make_load(60, clients=12, output=(20, 60))
    replica = Replica(load, bounds(load), price(), SeesAll(), observe_lag=1)
    replica.advance()
    assert (replica.machine.k_steps > 0).all()
    state = replica._policy.compiled().state  # type: ignore[attr-defined]
    assert (state[0] > 0).all()


def choose_below_zero(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    """A mistake in one request's K, or in that for all."""
    for i in range(len(seen)):
        k_each[i] = 1
    k_each[len(seen) - 1] = -7
    return PER_REQUEST if state[0, 0] == 1 else -5


def choose_too_much(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    return 1_000


def choose_by_a_dict(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # numba cannot
    return {"k": object()}


class Says:
    """A policy of one ``choose``."""

    def __init__(self, choose: Callable[..., int], first: float = 0.0) -> None:
        self.rule = Rule(np.array([[first]]), choose)

    def compiled(self) -> Rule:
        return self.rule

    def choose_k(self, step: StepView) -> object:
        return self.rule.choose_k(step)


def ends(policy: object, *, compiled: bool = True) -> Replica:
    load = make_load(6, clients=3)
    replica = Replica(load, bounds(load), price(), policy, compiled=compiled)  # type: ignore[arg-type]  # a test's own policy
    assert replica.advance() == kernel.DONE
    return replica


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("each", "told"), [(1.0, "-7"), (0.0, "-5")])
def test_a_k_below_zero_is_refused_in_one_line(compiled: bool, each: float, told: str) -> None:
    with pytest.raises(InputError, match=f"^policy Says: choose_k: got {told}, K must be 0 or more"):
        ends(Says(choose_below_zero, each), compiled=compiled)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_k_above_max_k_is_cut(compiled: bool) -> None:
    steps = ends(Says(choose_too_much), compiled=compiled).machine.k_steps
    assert steps[-1] > 0
    assert steps[1:-1].sum() == 0


@needs_numba
def test_a_rule_that_numba_cannot_compile_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match=r"^policy Says: choose_by_a_dict: .*numba must compile") as caught:
        ends(Says(choose_by_a_dict))
    assert "\n" not in str(caught.value)


def choose_or_raise(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    assert len(seen) > 0
    return 1


def test_a_rule_that_could_raise_is_refused_for_compiled_code_would_swallow_it() -> None:
    with pytest.raises(InputError, match=r"^policy Says: choose_or_raise: .*a rule cannot raise"):
        ends(Says(choose_or_raise))


def choose_a_fraction(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    return 2.9 * state[0, 0]


def choose_a_fraction_or_none(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    return 3 if len(seen) > 4 else state[0, 0]


def choose_a_truth(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    return len(seen) > 0


@needs_numba
@pytest.mark.parametrize(
    ("choose", "kind"),
    [
        (choose_a_fraction, "float64"),
        (choose_a_fraction_or_none, "float64"),
        (choose_a_truth, "bool"),
    ],
)
def test_a_k_that_compiled_code_would_cut_is_refused(choose: Callable[..., int], kind: str) -> None:
    with pytest.raises(InputError) as caught:
        ends(Says(choose, 1.0))
    told = str(caught.value)
    assert told.startswith(f"policy Says: {choose.__name__}: got 'a K of type {kind}")
    assert "a whole number is needed" in told
    assert "\n" not in told


def choose_by_zero(state, step, seen, prices, k_each):  # type: ignore[no-untyped-def]  # read by numba
    """2 where a division by zero gives infinity."""
    return 2 if 1.0 / state[0, 0] > 1e300 else 0


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("compiled", [True, False])
def test_a_division_by_zero_gives_infinity(compiled: bool) -> None:
    assert ends(Says(choose_by_zero), compiled=compiled).machine.k_steps[2] > 0


def test_what_compiled_hands_out_must_be_a_rule() -> None:
    class Raises(Says):
        def compiled(self) -> Rule:
            raise LookupError("boom")

    with pytest.raises(
        InputError, match=r"^policy Raises: compiled: got 'LookupError: boom', it must not raise"
    ):
        ends(Raises(choose_too_much))
    odd = Says(choose_too_much)
    odd.rule = 5  # type: ignore[assignment]  # the mistake
    with pytest.raises(InputError, match=r"^policy Says: compiled: got 'int', must return a"):
        ends(odd)


class ByAnyTable:
    """A policy of one table, whatever it is."""

    def __init__(self, table: object) -> None:
        self._table = table

    def table(self, max_batch: int) -> object:
        return self._table

    def choose_k(self, step: StepView) -> int:
        return 0


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (np.ones(3, np.int64), r"an array of shape \(3,\), int64.*must be an integer array of shape"),
        (np.ones(9), r"an array of shape \(9,\), float64"),
        (np.full(9, -1), "-1, K must be 0 or more"),
        (None, r"an array of shape \(\), object"),
    ],
)
def test_a_table_that_compiled_code_would_misread_is_refused(table: object, told: str) -> None:
    load = make_load(6, clients=3)
    with pytest.raises(InputError, match=rf"^policy ByAnyTable: table: got '?{told}"):
        Replica(load, bounds(load, max_num_seqs=8), price(), ByAnyTable(table))  # type: ignore[arg-type]


def test_a_rule_that_stands_in_no_file_runs_too() -> None:
    space: dict[str, Callable[..., int]] = {}
    exec("def choose(state, step, seen, prices, k_each):\n    return 2\n", space)
    assert ends(Says(space["choose"])).machine.k_steps[2] > 0


def test_a_class_that_overrides_a_method_of_its_parents_rule_is_called_at_every_step() -> None:
    class CalmGoodput(Goodput):
        def choose_k(self, step: StepView) -> int:
            return min(1, int(super().choose_k(step)))

    class Deaf(Heuristic):
        def observe(self, outcome: StepOutcome) -> None:
            """Learn nothing: every request stays at the start."""

    assert ends(CalmGoodput()).machine.k_steps[2:].sum() == 0
    assert ends(Deaf(start=4)).machine.k_steps[5:].sum() == 0
    assert ends(Heuristic(start=4)).machine.k_steps[5:].sum() > 0


@pytest.mark.parametrize("state", [np.zeros(3), np.zeros((2, 2), np.int64), np.zeros((4, 4)).T[::2]])
def test_a_state_that_the_compiled_loop_would_misread_is_refused(state: np.ndarray) -> None:
    with pytest.raises(ValueError, match="C-contiguous float64 matrix"):
        Rule(state, choose_too_much)


@pytest.mark.parametrize("batch", [1, 40, 300])
def test_the_prices_of_all_k_are_those_of_each(batch: int) -> None:
    cost = BatchCost(price(), batch, batch * 700)
    assert cost.seconds_by_k(7).tolist() == [cost.seconds(k) for k in range(8)]


def test_policies_load_without_numba() -> None:
    modules = "kplan.policy, kplan_policies.sglang_ema, kplan_policies.goodput, kplan_policies.heuristic"
    code = f"import sys, {modules}; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
