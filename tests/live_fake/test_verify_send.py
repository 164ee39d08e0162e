"""kplan's own client in place of an engine's load generator, and what a server is checked for beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.live import Server
from kplan.live.judge_server import mismatches, refuse
from kplan.live.prompts import Prompt
from kplan.live.workload import Demand, demand
from kplan.live.workload_send import send, warm_up
from tests.live_fake.fake import Engine, FakeServer
from tests.live_fake.verified import ready

ARRIVALS = np.array([0.0, 0.15, 0.2, 0.5])
SENT = Demand(
    prompt_len=np.array([12, 20, 31, 7]),
    output_len=np.array([9, 8, 21, 1]),
    arrival_s=ARRIVALS,
    concurrency=None,
    rows=None,
    prompts=None,
)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_requests_of_the_lengths_asked_for_are_sent_at_their_moments(engine: str) -> None:
    with FakeServer(Engine(name=engine, step_s=0.002)) as fake, Server(fake.url) as server:
        found = send(server, server.info(), SENT, 30.0, None)
        sent = sorted((len(one.prompt), len(one.tokens), len(one.steps)) for one in fake.done)
    assert found.start_s is not None
    assert found.start_s == pytest.approx(ARRIVALS, abs=0.4)  # a busy machine sends late
    assert found.output_len.tolist() == SENT.output_len.tolist()
    assert found.prompt_len.tolist() == SENT.prompt_len.tolist()
    assert sorted(zip(found.prompt_len, found.output_len, found.chunks, strict=True)) == sent
    assert found.decode_s[3] == 0.0
    assert found.duration_s == pytest.approx(float(found.start_s[3] + found.ttft_s[3]))


def test_prompts_are_sent_in_their_order_to_their_full_length() -> None:
    prompts = (Prompt(4, text="w5 w6"), Prompt(9, token_ids=(7, 8, 9)))
    sent = Demand(np.array([1, 1]), np.array([5, 6]), None, 1, None, prompts)
    with FakeServer(Engine(output_len=2)) as fake, Server(fake.url) as server:
        found = send(server, server.info(), sent, 30.0, None)
        assert [one.prompt for one in fake.done] == [(5, 6), (7, 8, 9)]
    assert found.prompt_len.tolist() == [2, 3]
    assert found.output_len.tolist() == [5, 6]


def test_the_warm_up_leaves_what_is_measured_uncached() -> None:
    with FakeServer() as fake, Server(fake.url) as server:
        info = server.info()
        warm_up(server, info, SENT, 30.0, None)
        warm = {one.prompt for one in fake.done}
        fake.done.clear()
        send(server, info, SENT, 30.0, None)
        assert len(warm) == 4
        assert not warm & {one.prompt for one in fake.done}


def test_a_server_that_is_another_is_told_in_sentences() -> None:
    plan = ready("fixed:4")
    with FakeServer(Engine(k=2, model="other", version="0.31.0")) as fake, Server(fake.url) as server:
        told = mismatches(server, server.info(), plan, server.metrics("vllm"))
    assert told == (
        "the server is vllm 0.31.0; what is known of it was read in 0.32.0",
        "the server serves other; the plan is for llama-3.1-8b",
        "the server was started with K = 2; the plan's largest is 4",
    )


def test_a_server_of_another_engine_is_told() -> None:
    plan = ready("fixed:4")
    engine = Engine(name="sglang", version="0.5.23", model="Llama-3.1-8B-Instruct")
    with FakeServer(engine) as fake, Server(fake.url) as server:
        info = server.info()
        before = server.metrics("sglang")
        refuse(server, info, plan, demand(plan, 3, None), before)
        assert mismatches(server, info, plan, before) == ("a sglang server answers; the plan is for vllm",)
    with (
        FakeServer(Engine(name="sglang", k=0)) as fake,
        Server(fake.url) as server,
        pytest.raises(InputError, match="does not speculate"),
    ):
        refuse(server, server.info(), plan, demand(plan, 3, None), server.metrics("sglang"))


def test_a_plan_without_speculation_notices_a_server_with_it() -> None:
    plan = ready("off")
    with FakeServer(Engine(model="Llama-3.1-8B-Instruct")) as fake, Server(fake.url) as server:
        told = mismatches(server, server.info(), plan, server.metrics("vllm"))
    assert told == ("the server speculates; the plan does not",)
