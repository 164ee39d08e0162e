"""What the engine counts, prices and shows of every step, against the reference's state and plain sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kplan.engine import Limits, Load, Replica, Traces, kernel
from kplan.engine import state as at
from kplan.engine.price import choose_oracle
from kplan.latency.compiled import step_parts
from tests.engine.reference import Asked, Reference
from tests.engine.scenes import ByTable, bounds, make_load, price, with_shared_beginnings
from tests.engine.test_reference import run_step, steps_of

KS = (3, 0, 5, 5, 2)
MAX_K = 5


def scene(seed: int) -> tuple[Load, Limits]:
    """Both flavours, open and closed loops, with a prefix cache or none, under tight bounds."""
    load = make_load(
        24,
        seed=seed,
        clients=7 if seed % 3 == 0 else None,
        prompt=(1, 90),
        output=(1, 40),
        match=0.7,
        depth=0.3,
    )
    if seed % 4 >= 2:
        load = with_shared_beginnings(load, seed, 16)
    sglang = seed % 2 == 1
    few = {"max_num_seqs": 6, "max_num_batched_tokens": 48, "total_blocks": 20, "max_k": MAX_K}
    return load, bounds(load, **few, k_now=sglang, prefill_first=sglang, window_from=4, window_to=19)


def drafts_of(one: Asked, tokens: int, k: int, limits: Limits) -> int:
    """Drafts that a decode step of ``tokens`` verifies."""
    return min(k, tokens - 1, one.drafted[one.emitted]) if limits.k_now else tokens - 1


def made(slow: Reference, cost: Any, k: int) -> dict[str, Any]:
    """What the step that is built does and takes."""
    decodes = tokens = kv = qk = prefills = prompt = prompt_kv = proposed = accepted = decode_emitted = (
        emitted
    ) = 0
    prompt_qk = 0.0
    for r, (q, decoding) in slow.chunks.items():
        one = slow.asked[r]
        if decoding:
            drafts = drafts_of(one, q, k, slow.limits)
            out = min(one.acc[one.emitted], drafts + 1, one.output - one.emitted)
            decodes, tokens, kv = decodes + 1, tokens + drafts + 1, kv + one.computed + 1
            qk += (drafts + 1) * (one.computed + 1)
            proposed, accepted = proposed + drafts, accepted + min(one.acc[one.emitted] - 1, drafts)
            decode_emitted += out
        else:
            prefills, prompt, prompt_kv = prefills + 1, prompt + q, prompt_kv + one.computed + q
            prompt_qk += q * (2 * one.computed + q) / 2
            emitted += one.computed + q == one.length
    parts = step_parts(
        cost, decodes, tokens, kv, qk, prefills, prompt, prompt_kv, prompt_qk,
        tokens + prefills, decodes + prefills, k,
    )  # fmt: skip
    return {
        **dict(zip(("verify_s", "draft_s", "sampling_s", "overhead_s"), parts, strict=True)),
        "context": kv,
        "batch": decodes + prefills,
        "decodes": decodes,
        "tokens": tokens + prompt,
        "k": k,
        "proposed": proposed,
        "accepted": accepted,
        "emitted": emitted + decode_emitted,
        "decode_emitted": decode_emitted,
        "running": len(slow.running),
        "used_blocks": slow.limits.total_blocks - slow.free,
        "switches": 0,
    }


@pytest.mark.parametrize("seed", range(8))
def test_every_step_is_recorded_and_summed(seed: int) -> None:
    load, limits = scene(seed)
    log: list[Any] = []
    cost = price(max_k=MAX_K)
    replica = Replica(load, limits, cost, ByTable(0), record=log.append)
    limits, m, req = replica.limits, replica.machine, replica.requests
    slow = Reference(load, limits, 0)
    steps: list[dict[str, Any]] = []
    k_steps, proposed, accepted, taken = np.zeros(MAX_K + 1), *np.zeros((3, len(load)))
    first_s, finish_s = np.full((2, len(load)), np.nan)
    for number, arrived in enumerate(steps_of(replica)):
        slow.schedule(arrived)
        while not slow.chunks:
            slow.schedule([])
        alone = limits.k_now and not any(decoding for _, decoding in slow.chunks.values())
        slow.k = k = 0 if alone else KS[number % len(KS)]
        step = made(slow, cost, k) | {"start_s": replica.clock_s, "asks": not alone}
        admitted = sum(one.found is not None for one in slow.asked)
        step["measured"] = 4 < admitted <= 19
        step["slice"] = min((admitted - 5) * 200 // 15, 199)
        end_s = replica.clock_s + sum(
            step[part] for part in ("verify_s", "draft_s", "sampling_s", "overhead_s")
        )
        for r, (q, decoding) in slow.chunks.items():
            if decoding:
                drafts = drafts_of(slow.asked[r], q, k, limits)
                taken[r], proposed[r] = taken[r] + 1, proposed[r] + drafts
                accepted[r] += min(slow.asked[r].acc[slow.asked[r].emitted] - 1, drafts)
                k_steps[drafts] += step["measured"]
            elif slow.asked[r].emitted == 0 and slow.asked[r].computed + q == slow.asked[r].length:
                first_s[r] = end_s
        run_step(replica, k)
        ended = slow.commit()
        finish_s[ended] = end_s
        assert replica.clock_s == pytest.approx(end_s, rel=1e-12)
        assert m.clock[1] == step["start_s"]
        waits, preemptions = len(slow.waiting), int(req.preempted.sum())
        steps.append(step | {"finished": len(ended), "waiting": waits, "preemptions": preemptions})
    replica.flush()
    records = np.concatenate(log)
    assert len(records) == len(steps) == m.counters[at.STEPS]
    for name in records.dtype.names:
        np.testing.assert_allclose(records[name], [step[name] for step in steps], rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(req.steps, taken)
    np.testing.assert_array_equal(req.proposed, proposed)
    np.testing.assert_array_equal(req.accepted, accepted)
    np.testing.assert_allclose(req.first_token_s, first_s, rtol=1e-12)
    np.testing.assert_allclose(req.finish_s, finish_s, rtol=1e-12)
    inside = [step for step in steps if step["measured"]]
    seconds = [
        sum(step[part] for part in ("verify_s", "draft_s", "sampling_s", "overhead_s")) for step in inside
    ]
    asked = [(step["k"] + 1, step["measured"], step["asks"]) for step in steps]
    turned, last = 0, 0
    for k, measured, asks in asked:
        now = k if asks else last
        turned += measured and 0 < last != now
        last = now
    sums = {
        at.VERIFY_S: "verify_s", at.DRAFT_S: "draft_s", at.SAMPLING_S: "sampling_s",
        at.OVERHEAD_S: "overhead_s", at.W_BATCH: "batch", at.W_DECODES: "decodes", at.W_EMITTED: "emitted",
        at.W_PROPOSED: "proposed",
        at.W_DECODE_EMITTED: "decode_emitted", at.W_CONTEXT: "context", at.W_SWITCHES: "switches",
    }  # fmt: skip
    for index, name in sums.items():
        assert m.sums[index] == pytest.approx(sum(step[name] for step in inside)), name
    assert (m.sums[at.W_STEPS], m.sums[at.W_K_SWITCHES]) == (len(inside), turned)
    assert m.sums[at.W_OPEN_S] == inside[0]["start_s"]
    assert m.sums[at.W_CLOSE_S] == pytest.approx(inside[-1]["start_s"] + seconds[-1], rel=1e-12)
    np.testing.assert_array_equal(m.k_steps, k_steps)
    np.testing.assert_array_equal(m.batch_steps, np.bincount([s["batch"] for s in inside], minlength=7))
    bins = np.zeros((200, 3))
    for step, step_s in zip(inside, seconds, strict=True):
        bins[step["slice"]] += step_s, step["batch"] * step_s, step["emitted"]
    np.testing.assert_allclose(m.bins, bins, rtol=1e-9)
    assert m.counters[at.PEAK_BLOCKS] == max(step["used_blocks"] for step in steps)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_shown_and_what_the_oracle_makes_of_it(seed: int) -> None:
    """Every step: who runs, what they show, what they would accept; and the depth of the most tokens a second
    by pricing each in turn."""
    load, limits = scene(seed)
    cost = price(max_k=MAX_K)
    replica = Replica(load, limits, cost, ByTable(0))
    limits, m, req = replica.limits, replica.machine, replica.records
    slow = Reference(load, limits, 0)
    last = np.random.default_rng(seed).integers(0, 9, (2, len(load)))
    chosen = set()
    for number, arrived in enumerate(steps_of(replica)):
        slow.schedule(arrived)
        while not slow.chunks:
            slow.schedule([])
        rows, decoding, seen, kv_tokens, waits = kernel.look(req, m, limits, replica.traces, last, True)
        batch = [r for r in slow.running if r in slow.chunks]
        offered, useful = zip(*(coming(slow, r) for r in batch), strict=True)
        assert rows.tolist() == [slow.running.index(r) for r in batch]
        assert decoding[1].tolist() == [r for r in batch if slow.chunks[r][1]]
        assert decoding[0].tolist() == [slow.running.index(r) for r in batch if slow.chunks[r][1]]
        assert not decoding[2].any()
        lengths = [slow.asked[r].length for r in batch]
        assert seen[:3].tolist() == [batch, [slow.asked[r].emitted for r in batch], lengths]
        assert seen[3:5].tolist() == last[:, batch].tolist()
        assert seen[5:].tolist() == [list(offered), list(useful)]
        assert (kv_tokens, waits) == (sum(lengths), len(slow.waiting))
        without = kernel.look(req, m, limits, replica.traces, last, False)[2]
        assert without.tolist() == seen[:6].tolist()
        rates = []
        for depth in range(MAX_K + 1):
            tokens = len(batch) + sum(min(one, depth) for one in useful)
            qk = int(tokens * (sum(lengths) / len(batch)))
            parts = step_parts(
                cost, len(batch), tokens, sum(lengths), qk, 0, 0, 0, 0.0, tokens, len(batch), depth
            )
            rates.append(tokens / sum(parts))
        best = int(np.argmax(rates))
        assert choose_oracle(req, m, limits, replica.traces, cost, replica.k_each) == best
        assert replica.k_each[rows].tolist() == [min(one, best) for one in useful]
        chosen.add(best)
        alone = limits.k_now and not any(decodes for _, decodes in slow.chunks.values())
        slow.k = k = 0 if alone else KS[number % len(KS)]
        run_step(replica, k)
        slow.commit()
    assert len(chosen) > 2


def coming(slow: Reference, r: int) -> tuple[int, int]:
    """Drafts that the proposer has for the coming proposal of a request, and useful ones of them."""
    one, (q, decoding) = slow.asked[r], slow.chunks[r]
    if slow.limits.k_now:
        place = one.emitted if decoding else one.output
    elif decoding:
        place = one.emitted + min(one.acc[one.emitted], one.drafts + 1, one.output - one.emitted)
    else:
        place = one.emitted + 1 if one.computed + q == one.length else one.output
    if place >= one.output:
        return 0, 0
    offered = min(one.drafted[place], MAX_K)
    return offered, min(offered, one.acc[place] - 1, one.output - place - 1)


def test_a_proposer_that_always_drafts_needs_no_list_of_its_offers() -> None:
    """An empty one stands for as many as are asked for."""
    load, limits = scene(0)
    load = replace(load, traces=Traces(load.traces.acc, np.full_like(load.traces.acc, 255)))
    none = replace(load, traces=Traces(load.traces.acc, np.zeros(0, np.uint8)))
    told = []
    for one in (load, none):
        replica = Replica(one, limits, price(max_k=MAX_K), ByTable(4))
        replica.advance()
        told.append(replica.records.tobytes())
    assert told[0] == told[1]
