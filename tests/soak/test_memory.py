"""2,000 random scenarios in one process: every law holds in each, and the memory does not grow."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import psutil

from kplan.errors import InfeasibleError, InputError
from kplan.metrics import measure
from kplan.registry import parse_policy
from kplan.search.evaluate import check_room
from kplan.simulate import draw_requests, prepare, run_fleet
from tests.soak import figures
from tests.soak.scenarios import check_laws, draw, policy_texts, scenario

SCENARIOS, FIRST = 2000, 100
MOST_GROWTH = 0.10
SEED = 20_260_301
SHOWN = 100


def test_memory_does_not_grow_over_2000_scenarios() -> None:
    """RSS after the first hundred is the base; no later reading, one per hundred, exceeds it by 10%.

    What is compiled and loaded once is not growth: every policy runs on both engines among the first hundred.
    A reading is taken after a collection and after glibc gave free pages back: its arenas keep those for the
    next allocation, up to as much as the largest scenario needed, which says nothing of a leak.
    """
    rng = np.random.default_rng(SEED)
    ways = [(policy, engine) for policy in policy_texts() for engine in ("vllm", "sglang")]
    assert len(ways) <= FIRST
    done = refused = requests = tokens = 0
    base = highest = rss = 0.0
    while done < SCENARIOS:
        policy, engine = ways[done % len(ways)]
        try:
            ran = _simulate(rng, policy, engine)
        except (InputError, InfeasibleError):
            refused += 1
            continue
        done += 1
        requests += ran[0]
        tokens += ran[1]
        if done % SHOWN == 0:
            rss = _rss_mib()
            base = base or rss
            highest = max(highest, rss)
            print(f"{done} scenarios, {refused} refused, RSS {rss:.1f} MiB", flush=True)
    figures.tell(
        "scenarios",
        scenarios=done,
        refused=refused,
        requests=requests,
        output_tokens=tokens,
        rss_start_mib=round(base, 1),
        rss_end_mib=round(rss, 1),
        rss_highest_mib=round(highest, 1),
        growth_percent=round(100 * (rss / base - 1), 2),
    )
    assert highest <= base * (1 + MOST_GROWTH)


def _simulate(rng: np.random.Generator, policy: str, engine: str) -> tuple[int, int]:
    """Run one random scenario and check its laws; requests served, and their output tokens.

    Raises:
        InputError, InfeasibleError: it is refused.
    """
    asked = scenario(draw(rng, policy, engine))
    spec = parse_policy(asked.policy)
    setup = prepare(asked)
    check_room(setup, [spec])
    assert asked.requests is not None
    drawn = draw_requests(setup, asked.requests, asked.seed)
    fleet, scale = run_fleet(setup, spec, drawn, replicas=asked.replicas or 1, whole=True)
    run = measure(fleet, scale)
    check_laws(fleet, run)
    return run.requests, run.output_tokens


def _rss_mib() -> float:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return float(psutil.Process().memory_info().rss / 2**20)
