"""What must hold for every registered policy."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.acceptance.trace import MAX_K
from kplan.policy import Observer, Policy, PolicyInfo, TablePolicy
from kplan.registry import PolicySpec, list_policies, parse_policy
from kplan.space import Choice, FloatRange, IntRange
from kplan_policies import _text

from .helpers import PricedByK, outcome, untimed, view

TEXTS = ["off", "fixed:3", "table:1-4=3,5-8=1,9-=0", "sglang-ema", "heuristic", "goodput", "oracle"]
SEEING = [text for text in TEXTS if text != "oracle"]


def drive(policy: Policy, depths: np.ndarray[Any, Any], future: np.ndarray[Any, Any]) -> list[list[int]]:
    """K per request at every step; ``depths`` (steps, B) is what happens, ``future`` what a view shows."""
    ids = np.arange(depths.shape[1])
    chosen = []
    for depth, ahead in zip(depths, future, strict=True):
        k = np.broadcast_to(policy.choose_k(view(ids, future=ahead)), len(ids))
        chosen.append(k.tolist())
        if isinstance(policy, Observer):
            policy.observe(outcome(ids, k, np.minimum(depth, k)))
    return chosen


@pytest.mark.parametrize("text", SEEING)
@untimed
@given(seed=st.integers(0, 2**32), batch=st.integers(1, 12), now=st.integers(1, 39))
def test_permuting_future_acceptance_never_changes_a_decision(
    text: str, seed: int, batch: int, now: int
) -> None:
    rng = np.random.default_rng(seed)
    spec = parse_policy(text)
    depths = rng.integers(0, 8, (40, batch))
    other = depths.copy()
    other[now:] = rng.permutation(other[now:].ravel()).reshape(other[now:].shape)
    one = drive(spec.build(), depths, depths)
    two = drive(spec.build(), other, other)
    assert one[: now + 1] == two[: now + 1]


@untimed
@given(
    future=st.lists(st.integers(0, 12), min_size=1, max_size=20),
    step_s=st.lists(st.floats(0.001, 0.1), min_size=8, max_size=8).map(sorted).map(tuple),
    token_s=st.floats(0.0, 0.01),
)
def test_the_oracle_drafts_what_is_accepted_down_to_the_depth_that_pays(
    future: list[int], step_s: tuple[float, ...], token_s: float
) -> None:
    cost = PricedByK(step_s, token_s)
    ks = parse_policy("oracle").build().choose_k(view(range(len(future)), future=np.array(future), cost=cost))

    def rate(depth: int) -> float:
        tokens = sum(min(drafts, depth) + 1 for drafts in future)
        return tokens / cost.seconds_at(tokens, depth)

    cut = max(range(8), key=rate)
    assert np.asarray(ks).tolist() == [min(drafts, cut) for drafts in future]


def test_the_oracles_alone_look_ahead_and_no_engine_runs_them() -> None:
    spec = parse_policy("oracle")
    assert [name for name, info in list_policies() if info.needs_future] == ["combined-oracle", "oracle"]
    assert not spec.exportable
    with pytest.raises(ValueError, match="future_accepted"):
        spec.build().choose_k(view([0]))


@pytest.mark.parametrize("text", TEXTS)
def test_two_builds_share_no_state(text: str) -> None:
    spec, rng = parse_policy(text), np.random.default_rng(3)
    depths = rng.integers(0, 8, (60, 4))
    fresh = drive(spec.build(), depths, depths)
    drive(spec.build(), depths[::-1], depths[::-1])
    assert drive(spec.build(), depths, depths) == fresh


@pytest.mark.parametrize("text", TEXTS)
def test_table_and_choices_agree_where_a_policy_has_a_table(text: str) -> None:
    policy = parse_policy(text).build()
    if isinstance(policy, TablePolicy):
        table = policy.table(12)
        assert all(policy.choose_k(view(range(batch))) == table[batch] for batch in range(1, 13))
    else:
        assert text in {"sglang-ema", "heuristic", "goodput", "oracle"}


def ranges(spec: PolicySpec) -> dict[str, Any]:
    """Constructor parameter -> its annotated search range."""
    hints = get_type_hints(spec.cls.__init__, include_extras=True)
    annotated = {name: get_args(hint)[1] for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {
        name: found for name, found in annotated.items() if isinstance(found, IntRange | FloatRange | Choice)
    }


@pytest.mark.parametrize("text", ["fixed:3", "sglang-ema", "heuristic", "goodput"])
def test_both_ends_of_every_search_range_build_and_hold_the_default(text: str) -> None:
    spec = parse_policy(text)
    found = ranges(spec)
    assert found
    for name, space in found.items():
        for value in (space.low, space.high):
            built = parse_policy(f"{text.partition(':')[0]}:{name}={value}")
            assert built.kwargs == {name: value}
        default = inspect.signature(spec.cls).parameters[name].default
        assert default is inspect.Parameter.empty or space.low <= default <= space.high


def test_every_policy_says_where_its_rule_is_from_and_why_no_engine_runs_it() -> None:
    for name, info in list_policies():
        assert isinstance(info, PolicyInfo)
        assert info.summary
        assert info.source
        assert bool(info.engines) != bool(info.why_not), name


def test_the_bound_on_k_is_the_traces() -> None:
    assert _text.MAX_K == MAX_K
