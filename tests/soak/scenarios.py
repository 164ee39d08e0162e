"""Random scenarios that cover what a server may be, and the laws that each run of one must keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from kplan.config.scenario import Scenario, make_scenario
from kplan.engine import Fleet
from kplan.engine.state import EXPECTED, FINISHED, FREE_BLOCKS, SUMS, W_DECODES, W_PROPOSED
from kplan.metrics import Measured
from kplan.profiles import available
from kplan.registry import list_policies

SEATS = (1, 4, 32, 256)
ARGUMENTS = {
    "fixed": ("1", "3", "7"),
    "table": ("1-8=5,9-32=2,33-=0", "1-=4"),
    "context-table": ("1-32x0-2047=3,1-32x2048-=5,33-x0-=1",),
}
"""Of the policies that cannot do without."""


def policy_texts() -> list[str]:
    """One text at least of every policy there is."""
    texts = []
    for name, _ in list_policies():
        texts += [f"{name}:{arg}" for arg in ARGUMENTS.get(name, ())] or [name]
    return texts


def draw(rng: np.random.Generator, policy: str, engine: str) -> dict[str, Any]:
    """The values of a random scenario of at most 119 requests; some are refused."""

    def of(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    combines = policy.partition(":")[0] in ("match-else", "best-expected", "combined-oracle")
    values: dict[str, Any] = {
        "policy": policy,
        "engine": engine,
        "model": of(*(line.name for line in available("models")), *["llama-3.1-8b"] * 6),
        "hardware": of(*(line.name for line in available("hardware")), *["h100-sxm"] * 4),
        "tp": of(1, 1, 2, 4, 8),
        "dp": of(1, 1, 1, 2) if engine == "vllm" else 1,
        "proposer": of("ngram+eagle3", "suffix+eagle3")
        if combines
        else of("eagle", "eagle3", "eagle3", "ngram", "suffix", "ngram+eagle3"),
        "workload": of("sharegpt", "gsm8k", "instructcoder", "mtbench"),
        "max_k": of(0, 1, 3, 7, 15),
        "requests": int(rng.integers(1, 120)),
        "seed": int(rng.integers(2**63)),
        "replicas": of(1, 1, 2, 5),
        "router": of("round-robin", "round-robin", "least-outstanding"),
        "quantization": of(None, None, "fp8", "int4"),
        "kv_cache_dtype": of("auto", "auto", "fp8"),
        "async_scheduling": of(None, None, False),
        "enforce_eager": of(False, False, True),
        "prompt_tokens": of(None, None, 1, int(rng.integers(1, 5000))),
        "output_tokens": of(None, None, 1, int(rng.integers(1, 1500))),
        "max_num_seqs": of(None, *SEATS),
        "max_num_batched_tokens": of(None, 17, 512, 8192),
        "max_model_len": of(None, None, 4096),
        "gpu_memory_utilization": float(rng.uniform(0.6, 0.95)),
    }
    return values | _load(rng, values["requests"])


def _load(rng: np.random.Generator, requests: int) -> dict[str, Any]:
    kind = rng.integers(4)
    qps = float(10 ** rng.uniform(-1, 3))
    if kind == 0:
        clients = int(rng.integers(1, min(requests, 64) + 1))
        return {"concurrency": clients, "think_s": float(rng.choice([0.0, 0.0, 0.3]))}
    if kind == 1:
        return {"qps": qps, "burstiness": float(10 ** rng.uniform(-2, 2))}
    if kind == 2:
        return {"qps": qps, "arrivals": "ramp", "ramp_to_qps": float(10 ** rng.uniform(-1, 3))}
    return {"qps": qps, "arrivals": str(rng.choice(["constant", "poisson"]))}


def scenario(values: dict[str, Any]) -> Scenario:
    """The scenario of ``values``; raises InputError where they do not hold together."""
    return make_scenario(values)


def check_laws(fleet: Fleet, run: Measured) -> None:
    """Conservation and causality of a run that is over.

    Raises:
        AssertionError: one is broken.
    """
    for replica in fleet.replicas:
        count = replica.machine.counters
        assert count[FINISHED] == count[EXPECTED] == len(replica.admitted)
        assert count[FREE_BLOCKS] == replica.limits.total_blocks, "every block comes back"
        mine = replica.requests[replica.admitted]
        np.testing.assert_array_equal(mine.emitted, mine.output_len)
        assert (mine.accepted <= mine.proposed).all()
        assert (mine.blocks == 0).all()
        # a step emits one token and its accepted drafts, less a cut tail; a recomputed prefill emits one
        assert (mine.output_len - 1 <= mine.steps + mine.accepted + mine.preempted).all()
        assert (mine.admitted_s >= mine.arrival_s).all()
        assert (mine.first_token_s > mine.admitted_s).all()
        assert (mine.finish_s >= mine.first_token_s).all()
    asked = [one.requests.output_len[one.admitted] for one in fleet.replicas]
    assert run.output_tokens == sum(int(each.sum()) for each in asked)
    assert run.sums.shape == (SUMS,)
    assert np.isfinite(run.sums).all()
    assert run.k_steps.sum() == run.sums[W_DECODES]
    assert (run.k_steps * np.arange(len(run.k_steps))).sum() == run.sums[W_PROPOSED]
    assert np.isfinite(run.output_tok_s)
    assert run.output_tok_s > 0
    assert np.isfinite(run.ttft_s).all()
    assert run.little_gap > -1e-6
