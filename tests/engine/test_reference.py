"""The scheduler, the KV blocks and the prefix cache, step by step against a plain reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.engine import Limits, Load, Replica, kernel
from kplan.engine.execute import execute
from kplan.engine.prefix import HOLDERS
from kplan.engine.state import CACHED, FREE_BLOCKS, QUEUED, RUNNING
from kplan.workload import Prefix
from tests.engine.reference import Reference
from tests.engine.scenes import ByTable, bounds, make_load, price, scenes, with_shared_beginnings

MANY = settings(max_examples=200, deadline=None)


def steps_of(replica: Replica) -> Iterator[list[int]]:
    """Every step of ``replica`` once it is built, with who was queued for it; the caller runs it."""
    seen = 0
    m = replica.machine
    while (batch := kernel.next_batch(replica.records, m, replica.limits, np.inf)) > 0:
        queued = int(m.counters[QUEUED])
        yield m.queue[seen:queued].tolist()
        seen = queued
    assert batch == kernel.DONE


def run_step(replica: Replica, k: int) -> None:
    k = min(k, replica.limits.max_k)
    execute(
        replica.records, replica.machine, replica.limits, replica.traces, replica.cost, k, False,
        replica.k_each,
    )  # fmt: skip


@given(scenes(most=60), st.integers(0, 7))
@MANY
def test_every_step_is_that_of_the_reference(scene: tuple[Load, Limits], k: int) -> None:
    load, limits = scene
    replica = Replica(load, limits, price(), ByTable(k))
    m, req = replica.machine, replica.requests
    slow = Reference(load, replica.limits, k)
    for arrived in steps_of(replica):
        slow.schedule(arrived)
        while not slow.chunks:  # the last one running preempted itself
            slow.schedule([])
        rows = m.rows[: m.counters[RUNNING]]
        assert rows["running"].tolist() == slow.running
        runs = rows[rows["chunk"] > 0]
        assert {r: (q, bool(d)) for r, q, d in runs[["running", "chunk", "decodes"]].tolist()} == slow.chunks
        assert m.counters[FREE_BLOCKS] == slow.free
        kept = np.flatnonzero(m.unit_state[:-1, HOLDERS] > 0)
        assert kept.tolist() == sorted(slow.holders)
        assert m.counters[CACHED] == len(slow.idle)
        run_step(replica, k)
        assert replica.ended.tolist() == slow.commit()
        assert req.emitted.tolist() == [one.emitted for one in slow.asked]
    assert req.cached.tolist() == [one.found for one in slow.asked]
    assert not slow.running
    assert not slow.waiting


@given(scenes(caches=("shared", "history")), st.integers(0, 7))
@MANY
def test_blocks_of_requests_and_of_kept_units_add_up(scene: tuple[Load, Limits], k: int) -> None:
    load, limits = scene
    replica = Replica(load, limits, price(), ByTable(k))
    m, req = replica.machine, replica.requests
    blocks = replica.limits.unit_tokens // limits.block_tokens
    units = m.unit_state[:-1, HOLDERS]
    for _ in steps_of(replica):
        free = int(m.counters[FREE_BLOCKS])
        assert free + req.blocks.sum() + (units > 1).sum() * blocks == limits.total_blocks
        assert (units == 1).sum() == m.counters[CACHED]
        assert 0 <= m.counters[CACHED] * blocks <= free
        assert (req.blocks >= 0).all()
        ids = m.rows["running"][: m.counters[RUNNING]]
        asked = req.computed[ids] + m.rows["chunk"][: m.counters[RUNNING]]
        assert ((req.blocks + req.shared)[ids] * limits.block_tokens >= asked).all(), "every token has a slot"
        assert (req.cached[ids] < req.prompt_len[ids]).all(), "a hit leaves something to compute"
        run_step(replica, k)
    assert m.counters[FREE_BLOCKS] == limits.total_blocks
    assert not m.held.any()


@given(scenes(caches=("shared", "history")), st.integers(0, 7))
@MANY
def test_the_cache_changes_no_token(scene: tuple[Load, Limits], k: int) -> None:
    load, limits = scene
    with_it, without = (
        Replica(one, limits, price(), ByTable(k)) for one in (load, replace(load, prefix=None))
    )
    assert with_it.advance() == without.advance() == kernel.DONE
    np.testing.assert_array_equal(with_it.requests.emitted, without.requests.emitted)
    assert (without.requests.cached == 0).all()


@given(st.integers(0, 2**31), st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_a_hit_only_ever_hastens_a_request_that_is_alone(seed: int, blocks: int) -> None:
    """One request at a time, so that nothing but its own prompt decides when its first token comes."""
    load = make_load(12, seed=seed, clients=1, prompt=(50, 900))
    cached = with_shared_beginnings(load, seed, 16 * blocks)
    with_it, without = (Replica(one, bounds(one), price(), ByTable(3)) for one in (cached, load))
    with_it.advance()
    without.advance()
    ttft_s = [replica.requests.first_token_s - replica.requests.arrival_s for replica in (with_it, without)]
    hit = with_it.requests.cached > 0
    assert (ttft_s[0] <= ttft_s[1] + 1e-12).all()
    # below 256 tokens the weights take longer to read than the tokens to compute
    long_prompts = without.requests.prompt_len - with_it.requests.cached >= 256
    assert (ttft_s[0] < ttft_s[1])[hit & long_prompts].all()
    np.testing.assert_allclose(ttft_s[0][~hit], ttft_s[1][~hit], rtol=1e-9)


def test_a_beginning_is_found_until_others_push_it_out() -> None:
    """Three texts of 4 units in a cache of 9: A, B and A again finds all but the end; C pushes B out."""
    load = make_load(5, clients=1, prompt=(65, 65), output=(1, 1))
    texts = np.repeat([0, 1, 0, 2, 1], 4).reshape(5, 4) * 4 + np.arange(4)
    load = replace(load, prefix=Prefix(16, texts.ravel().astype(np.int32), np.arange(6) * 4))
    replica = Replica(load, bounds(load, total_blocks=9, max_k=0), price(), ByTable(0))
    replica.advance()
    assert replica.requests.cached.tolist() == [0, 0, 64, 0, 0]
    roomy = Replica(load, bounds(load, total_blocks=13, max_k=0), price(), ByTable(0))
    roomy.advance()
    assert roomy.requests.cached.tolist() == [0, 0, 64, 0, 64]
