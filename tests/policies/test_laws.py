"""What must hold for every registered policy: the laws of kplan.testing, and what only built-ins promise."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kplan_policies
from kplan.acceptance.trace import MAX_K
from kplan.registry import list_policies, parse_policy
from kplan.testing import LAWS, Law
from kplan_policies import _text
from tests.engine.scenes import scenes
from tests.engine.test_automata import both_paths_agree

from .helpers import PricedByK, untimed, view

ARGS = {
    "fixed": "3",
    "table": "1-4=3,5-8=1,9-=0",
    "context-table": "1-8x0-150=3,1-8x151-=5,9-x0-=1",
}
"""What stands behind the names of those that need it."""

TEXTS = [f"{name}:{ARGS[name]}" if name in ARGS else name for name, _ in list_policies()]

KNOBS = [
    "band:target=0.5,weight=0.7,start=1",
    "confidence:product=true,threshold=0.2",
    "context-table:1-3x0-20=0,1-3x21-=7,4-9x0-=2",
    "hazard-cost:weight=0.5,strength=0.5,probe_every=3",
    "position-ema:window=1,cooldown=0,hysteresis=0,cap=[[1,4,5],[5,null,1]]",
    "probe:window=1,hold=3",
    "request-ema:weight=0.8,margin=2.5",
    "thompson:dwell=1,spread=1.0,seed=7",
    "throughput-aware:candidates=[1,2,5],interval=1",
    "ucb:dwell=1,explore=1.0,memory=0.9",
]
"""Rules whose memory moves at every step."""


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("text", TEXTS)
def test_every_policy_keeps_every_law(text: str, law: Law) -> None:
    law.check(text)


@pytest.mark.parametrize("text", KNOBS)
@given(scene=scenes(), lag=st.integers(0, 2))
@untimed
def test_compiled_and_called_from_python_they_end_in_the_same_bytes(
    text: str, scene: tuple[object, object], lag: int
) -> None:
    both_paths_agree(parse_policy(text).build, *scene, lag=lag)  # type: ignore[arg-type]


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


def test_only_oracles_look_ahead_and_no_engine_runs_them() -> None:
    assert [name for name, info in list_policies() if info.needs_future and "oracle" not in name] == []
    spec = parse_policy("oracle")
    assert spec.info.needs_future
    assert not spec.exportable
    with pytest.raises(ValueError, match="future_accepted"):
        spec.build().choose_k(view([0]))


def test_policies_load_without_numba() -> None:
    names = ", ".join(
        f"kplan_policies.{module.name}" for module in pkgutil.iter_modules(kplan_policies.__path__)
    )
    code = f"import sys, {names}; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_bound_on_k_is_the_traces() -> None:
    assert _text.MAX_K == MAX_K
