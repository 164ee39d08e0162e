"""Data-parallel ranks: which step together, and which are servers of their own."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.config.scenario import make_scenario
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.simulate import default_requests, draw_requests, prepare, run_policy

FIXED = parse_policy("fixed:2")
LOAD = {"qps": 20.0, "workload": "gsm8k", "requests": 600}


@pytest.mark.parametrize("router", ["round-robin", "least-outstanding"])
def test_two_ranks_of_a_dense_model_are_two_servers(router: str) -> None:
    ranks = prepare(make_scenario({**LOAD, "router": router, "dp": 2}))
    servers = prepare(make_scenario({**LOAD, "router": router}))
    drawn = draw_requests(servers, 600, 0)
    one = run_policy(ranks, FIXED, drawn, replicas=1)
    two = run_policy(servers, FIXED, drawn, replicas=2)
    np.testing.assert_array_equal(one.tpot_s, two.tpot_s)
    np.testing.assert_array_equal(one.ttft_s, two.ttft_s)
    assert one.output_tok_s == two.output_tok_s


def test_ranks_that_share_experts_wait_for_the_slowest() -> None:
    """A prefill on one rank holds up the decodes of the other, as it would not on another server."""
    load = {
        "qps": 4.0, "model": "mixtral-8x7b", "tp": 4, "proposer": "ngram", "requests": 200,
        "prompt_tokens": 4000, "output_tokens": 100,
    }  # fmt: skip
    together = prepare(make_scenario({**load, "dp": 2}))
    apart = prepare(make_scenario(load))
    assert (together.ranks, apart.ranks) == (2, 1)
    drawn = draw_requests(apart, 200, 0)
    off = parse_policy("off")
    waiting = run_policy(together, off, drawn, replicas=1).mean_tpot_s
    assert waiting > 1.05 * run_policy(apart, off, drawn, replicas=2).mean_tpot_s


def test_every_rank_gets_time_to_settle() -> None:
    """Twice the rate on two ranks settles as the rate on one, so twice the requests are drawn."""
    one = default_requests(prepare(make_scenario({"qps": 10.0})))
    assert default_requests(prepare(make_scenario({"qps": 20.0, "dp": 2}))) == 2 * one


def test_a_rank_needs_a_request_and_a_client() -> None:
    setup = prepare(make_scenario({"qps": 1.0, "dp": 4, "requests": 3}))
    with pytest.raises(InputError, match="1 replicas of 4 ranks need at least one each"):
        default_requests(setup)
    with pytest.raises(InputError, match="3 clients leave some of 4 ranks without one"):
        make_scenario({"concurrency": 3, "dp": 2, "replicas": 2})


@pytest.mark.parametrize("policy", ["sglang-ema", "fixed:3"])
def test_sglang_has_no_such_ranks(policy: str) -> None:
    with pytest.raises(InputError, match=r"sglang has no such ranks.*--replicas") as caught:
        prepare(make_scenario({"qps": 1.0, "dp": 2, "engine": "sglang", "policy": policy}))
    assert "\n" not in str(caught.value)
