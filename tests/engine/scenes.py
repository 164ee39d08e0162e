"""Random loads and bounds for the engine's tests, and the price lists they share."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kplan.engine import Limits, Load, Traces
from kplan.latency import LatencyModel, StepCost, engine_traits
from kplan.latency.attention import AttentionCost
from kplan.latency.compiled import TARGET
from kplan.policy import StepView
from kplan.profiles import load_calibration, load_drafter, load_engine, load_hardware, load_model
from kplan.workload import Prefix
from kplan.workload.sessions import shared_history

BLOCK = 16


@cache
def price(proposer: str | None = "eagle", seats: int = 64, max_k: int = 7) -> StepCost:
    hardware, model = load_hardware("h100-sxm"), load_model("llama-3.1-8b")
    drafter = load_drafter(proposer, model) if proposer else None
    traits = engine_traits(load_engine("vllm"), drafter, seats, max_k)
    latency = LatencyModel(hardware, model, drafter, load_calibration(hardware.name), tp=1, traits=traits)
    return latency.compile(4096, seats, max_k)


def bare_price(seconds_by_tokens: NDArray[np.float64]) -> StepCost:
    """A step takes ``seconds_by_tokens[tokens]``, whatever else it does; drafts are free."""
    cost = scaled(price(None), 0.0)
    tables = np.zeros((len(cost.tables), len(seconds_by_tokens)))
    tables[TARGET] = seconds_by_tokens
    return cost._replace(tables=tables, graph_tokens=1 << 30)


def scaled(cost: StepCost, c: float) -> StepCost:
    """The same machine with every second ``c`` times as long."""
    seconds = [name for name in StepCost._fields if name.endswith("_s")]
    attention = [name for name in AttentionCost._fields if name.endswith("_s")]

    def slower(one: AttentionCost) -> AttentionCost:
        return one._replace(**{name: getattr(one, name) * c for name in attention})

    return cost._replace(
        tables=cost.tables * c,
        attention=slower(cost.attention),
        draft_attention=slower(cost.draft_attention),
        **{name: getattr(cost, name) * c for name in seconds},
    )


class ByTable:
    """K by batch size, in both forms: the engine runs it compiled or one call per step."""

    def __init__(self, *ks: int) -> None:
        self.ks = ks

    def choose_k(self, step: StepView) -> int:
        return self.ks[(step.batch - 1) % len(self.ks)]

    def table(self, max_batch: int) -> NDArray[np.int64]:
        return np.array([0, *[self.ks[(b - 1) % len(self.ks)] for b in range(1, max_batch + 1)]])


class PerRequest:
    """A different K for every request, from what it has seen of it."""

    def choose_k(self, step: StepView) -> NDArray[np.int64]:
        return (step.request + step.last_accepted + step.position) % 5


def make_load(
    n: int,
    *,
    seed: int = 0,
    qps: float = 50.0,
    clients: int | None = None,
    prompt: tuple[int, int] = (1, 300),
    output: tuple[int, int] = (1, 60),
    match: float = 1.0,
    depth: float = 0.35,
) -> Load:
    """``n`` requests; ``match``: chance that the proposer has a draft, ``depth``: that a draft is wrong."""
    rng = np.random.default_rng(seed)
    output_len = rng.integers(output[0], output[1] + 1, n)
    total = int(output_len.sum())
    acc = np.minimum(rng.geometric(depth, total), 21).astype(np.uint8)
    drafted = np.where(rng.random(total) < match, 255, 0).astype(np.uint8)
    acc[drafted == 0] = 1
    starts = np.concatenate([[0], np.cumsum(output_len)[:-1]])
    acc[starts] = 1
    return Load(
        arrival_s=np.cumsum(rng.exponential(1 / qps, n)),
        prompt_len=rng.integers(prompt[0], prompt[1] + 1, n),
        output_len=output_len,
        trace_at=starts.astype(np.int64),
        traces=Traces(acc, drafted),
        concurrency=clients,
    )


def with_sessions(load: Load, seed: int, pause_s: float) -> Load:
    """About two thirds of the requests wait for an earlier one's end; several may wait for the same."""
    rng = np.random.default_rng(seed)
    n = len(load)
    waits = rng.random(n) < 2 / 3
    waits[0] = False
    follows = np.array([int(rng.integers(i)) if waits[i] else -1 for i in range(n)], np.int64)
    think_s = np.where(rng.random(n) < 0.5, rng.exponential(pause_s, n), 0.0)
    return replace(load, follows=follows, think_s=think_s)


def with_shared_beginnings(load: Load, seed: int, unit: int) -> Load:
    """Requests begin like one of three texts for a while, then go their own way; outputs have units too."""
    rng = np.random.default_rng(seed)
    whole = (load.prompt_len + load.output_len) // unit
    offsets = np.concatenate([[0], np.cumsum(whole)]).astype(np.int64)
    ids = 3 * 10_000 + np.arange(offsets[-1])
    for at, units in zip(offsets[:-1], whole, strict=True):
        common = int(rng.integers(units + 1))
        ids[at : at + common] = int(rng.integers(3)) * 10_000 + np.arange(common)
    return replace(load, prefix=Prefix(unit, _dense(ids), offsets))


def with_history(load: Load, unit: int) -> Load:
    """Each turn's prompt begins with the history of the one before."""
    assert load.follows is not None
    ids, offsets = shared_history(load.prompt_len, load.output_len, load.follows, unit)
    return replace(load, prefix=Prefix(unit, ids, offsets))


def _dense(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.unique(ids, return_inverse=True)[1].astype(np.int32)


def bounds(load: Load, **changes: object) -> Limits:
    values: dict[str, object] = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "block_tokens": BLOCK,
        "total_blocks": 20_000,
        "max_k": 7,
        "k_now": False,
        "prefill_first": False,
        "closed": load.concurrency is not None,
        "window_from": 0,
        "window_to": len(load),
    }
    return Limits(**(values | changes))  # type: ignore[arg-type]  # the values are checked by the tests' use


LOOPS = ("open", "closed", "thinking", "sessions")
CACHES = ("none", "shared", "history")


@st.composite
def scenes(
    draw: st.DrawFn,
    loops: tuple[str, ...] = LOOPS,
    caches: tuple[str, ...] = CACHES,
    most: int = 40,
) -> tuple[Load, Limits]:
    """A small load under tight or loose bounds, of either flavour, of any kind of arrivals and beginnings."""
    loop = draw(st.sampled_from(loops))
    seed = draw(st.integers(0, 2**31))
    load = make_load(
        draw(st.integers(1, most)),
        seed=seed,
        qps=draw(st.sampled_from([2.0, 50.0, 2000.0])),
        clients=draw(st.integers(1, 12)) if loop in ("closed", "thinking") else None,
        prompt=(1, draw(st.sampled_from([3, 60, 700]))),
        output=(1, draw(st.sampled_from([1, 8, 90]))),
        match=draw(st.sampled_from([0.0, 0.4, 1.0])),
        depth=draw(st.sampled_from([0.2, 0.5, 1.0])),
    )
    load = replace(load, arrival_s=np.round(load.arrival_s, draw(st.sampled_from([1, 17]))))  # some at once
    pause_s = draw(st.sampled_from([0.001, 0.3]))
    if loop == "thinking":
        load = replace(load, think_s=np.random.default_rng(seed).exponential(pause_s, len(load)))
    if loop == "sessions":
        load = with_sessions(load, seed, pause_s)
    cache = draw(st.sampled_from(caches))
    unit = BLOCK * draw(st.integers(1, 3))
    if cache == "history" and load.follows is not None:
        load = with_history(load, unit)
    elif cache != "none":
        load = with_shared_beginnings(load, seed, unit)
    max_k = draw(st.integers(0, 7))
    longest = int((load.prompt_len + load.output_len).max())
    fewest = -(-(longest + max_k + 1) // BLOCK)
    sglang = draw(st.booleans())
    changes: dict[str, Any] = {"max_len": longest} if draw(st.booleans()) else {}
    return load, bounds(
        load,
        max_num_seqs=draw(st.integers(1, 24)),
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 512, 2048])),
        total_blocks=fewest + draw(st.sampled_from([0, 3, 40, 5000])),
        max_k=max_k,
        k_now=sglang,
        prefill_first=sglang,
        overlap=draw(st.booleans()),
        **changes,
    )
