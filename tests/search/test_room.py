"""What is said before anything is simulated: requests without room, tables without an engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.search.evaluate import check_room
from kplan.search.single import as_served
from kplan.simulate import prepare


def test_the_room_named_is_that_of_the_policy_with_the_least() -> None:
    load = {"qps": 1.0, "prompt_tokens": 2000, "output_tokens": 100, "max_k": 3}
    setup = prepare(make_scenario(load))
    specs = [parse_policy("off"), parse_policy("fixed:3")]
    check_room(replace(setup, kv_tokens=2112, kv_tokens_off=2112), specs)  # 132 blocks: 2,108 and 4 to draft
    tight = replace(setup, kv_tokens=2111, kv_tokens_off=2112)  # 131 blocks are 2,096, less 3 drafts and 1
    with pytest.raises(InputError, match=r"got 2100.*room for 2092 tokens.*--max-model-len 2092"):
        check_room(tight, specs)
    check_room(tight, specs[:1])


@pytest.mark.parametrize(
    ("dp", "policy", "served"),
    [
        (2, "table:1-64=1,65-=4", "fixed:4"),
        (2, "table:1-2000=2,2001-=7", "fixed:2"),  # 1,024 seats
        (2, "fixed:3", "fixed:3"),
        (2, "goodput", "goodput"),
        (1, "table:1-64=1,65-=4", "table:1-64=1,65-=4"),
    ],
)
def test_ranks_serve_the_largest_k_of_a_table(dp: int, policy: str, served: str) -> None:
    setup = prepare(make_scenario({"qps": 1.0, "dp": dp}))
    spec, told = as_served(setup, parse_policy(policy))
    assert spec.text == served
    assert len(told) == (served != policy)
