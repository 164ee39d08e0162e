"""Random loads and bounds for the engine's tests, and the price list they share."""

from __future__ import annotations

from functools import cache

import numpy as np
from hypothesis import strategies as st

from kplan.engine import Limits, Load, Traces
from kplan.latency import LatencyModel, StepCost, engine_traits
from kplan.profiles import load_calibration, load_drafter, load_engine, load_hardware, load_model


@cache
def price(proposer: str | None = "eagle", seats: int = 64, max_k: int = 7) -> StepCost:
    hardware, model = load_hardware("h100-sxm"), load_model("llama-3.1-8b")
    drafter = load_drafter(proposer, model) if proposer else None
    traits = engine_traits(load_engine("vllm"), drafter, seats, max_k)
    latency = LatencyModel(hardware, model, drafter, load_calibration(hardware.name), tp=1, traits=traits)
    return latency.compile(4096, seats, max_k)


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


def bounds(load: Load, **changes: object) -> Limits:
    values: dict[str, object] = {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "block_tokens": 16,
        "total_blocks": 20_000,
        "max_k": 7,
        "k_now": False,
        "prefill_first": False,
        "closed": load.concurrency is not None,
        "window_from": 0,
        "window_to": len(load),
    }
    return Limits(**(values | changes))  # type: ignore[arg-type]  # the values are checked by the tests' use


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Load, Limits]:
    """A small load under tight or loose bounds, of either flavour, open or closed."""
    n = draw(st.integers(1, 40))
    load = make_load(
        n,
        seed=draw(st.integers(0, 2**31)),
        qps=draw(st.sampled_from([2.0, 50.0, 2000.0])),
        clients=draw(st.one_of(st.none(), st.integers(1, 12))),
        prompt=(1, draw(st.sampled_from([3, 60, 700]))),
        output=(1, draw(st.sampled_from([1, 8, 90]))),
        match=draw(st.sampled_from([0.0, 0.4, 1.0])),
        depth=draw(st.sampled_from([0.2, 0.5, 1.0])),
    )
    max_k = draw(st.integers(0, 7))
    largest = int((load.prompt_len + load.output_len).max()) + max_k + 1
    fewest = -(-largest // 16)
    sglang = draw(st.booleans())
    return load, bounds(
        load,
        max_num_seqs=draw(st.integers(1, 24)),
        max_num_batched_tokens=draw(st.sampled_from([16, 64, 512, 2048])),
        total_blocks=fewest + draw(st.sampled_from([0, 3, 40, 5000])),
        max_k=max_k,
        k_now=sglang,
        prefill_first=sglang,
    )
