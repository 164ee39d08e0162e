"""The figures of ``kplan bench``, each measured with its answer checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kplan.bench import scenes
from kplan.bench.child import KPLAN, run_child
from kplan.bench.rounds import Rounds, check, timed
from kplan.config.scenario import make_scenario
from kplan.search.optimize import Asked, optimize
from kplan.search.score import log_ratios, lowest

GIB = 2**30
FAST_REQUESTS = 38_400
"""Ten minutes at 64 QPS."""
LEAST_BATCH = 32
STEP_REQUESTS = {1: 1_000, 8: 4_000, 64: 8_000, 256: 16_000}
"""Requests by batch size: enough for some tenths of a second each."""
PYTHON_BATCH, PYTHON_REQUESTS = 64, 1_000
LINEAR_ROUNDS = {10_000: 5, 100_000: 3, 1_000_000: 1}
"""Requests, and how often each number is served: a long run averages the noise that a short one meets."""
TRIALS, WORKERS = 200, 2


@dataclass(frozen=True)
class Reading:
    """One measurement: its keys of the record, and the rounds behind them by name."""

    values: dict[str, Any]
    rounds: dict[str, Rounds]


def startup() -> Reading:
    """Seconds of ``kplan --help``."""
    told, rounds = run_child([*KPLAN, "--help"], 5)
    check("recommend" in told, "kplan --help does not name recommend")
    return Reading({"startup_s": rounds.best_wall_s}, {"startup": rounds})


def recommend() -> Reading:
    """Seconds of ``kplan recommend --qps 64``; the best of two, so what had to be compiled is left out."""
    told, rounds = run_child([*KPLAN, "recommend", "--qps", f"{scenes.QPS:g}", "--json"], 2)
    answer = json.loads(told)["answer"]
    check(answer["feasible"] and answer["replicas"] >= 1, f"recommend answered {answer['words']}")
    return Reading({"recommend_s": rounds.best_wall_s}, {"recommend": rounds})


def million() -> Reading:
    """Time and memory of a process that simulates 10^6 requests, start-up and drawing them included."""
    requests = 1_000_000
    told, rounds = run_child(["-m", "kplan.bench.child", str(requests)], 2)
    done = json.loads(told)
    check(done["requests"] == requests, f"{done['requests']} requests were served, {requests} asked for")
    return Reading(
        {
            "million_requests": {
                "wall_s": rounds.best_wall_s,
                "cpu_s": rounds.best_cpu_s,
                "peak_gib": done["peak_bytes"] / GIB,
            }
        },
        {"million": rounds},
    )


def linear() -> Reading:
    """CPU seconds by number of requests, each with its ratio to proportional cost from the fewest on.

    ``worst`` is the ratio farthest from 1, as its distance.
    """
    rounds = {}
    for requests, times in LINEAR_ROUNDS.items():
        run = scenes.table_run(requests)
        _, rounds[requests] = timed(run.serve, times, warm=requests == min(LINEAR_ROUNDS))
    base = min(rounds)
    each_s = rounds[base].best_cpu_s / base
    ratio = {n: taken.best_cpu_s / (n * each_s) for n, taken in rounds.items()}
    values = {
        "cpu_s": {str(n): taken.best_cpu_s for n, taken in rounds.items()},
        "ratio": {str(n): value for n, value in ratio.items()},
        "worst": max(abs(value - 1) for value in ratio.values()),
    }
    return Reading({"linear": values}, {f"linear_{n}": taken for n, taken in rounds.items()})


def fast_path() -> Reading:
    """Output tokens per CPU-second of the compiled loop under a table policy."""
    run = scenes.table_run(FAST_REQUESTS)
    done, rounds = timed(run.serve, 7)
    batch = scenes.mean_batch(done)
    check(batch >= LEAST_BATCH, f"the mean batch was {batch:.1f}, at least {LEAST_BATCH} was meant")
    return Reading(
        {
            "fast_path_tokens_per_cpu_s": done.output_tokens / rounds.best_cpu_s,
            "fast_path_mean_batch": batch,
        },
        {"fast_path": rounds},
    )


def steps() -> Reading:
    """Steps per CPU-second of the compiled loop by batch size, in a closed loop."""
    values, all_rounds = {}, {}
    for batch, requests in STEP_REQUESTS.items():
        run = scenes.client_run(batch, requests)
        done, rounds = timed(run.serve, 5)
        _check_batch(scenes.mean_batch(done), batch)
        values[str(batch)] = done.steps / rounds.best_cpu_s
        all_rounds[f"steps_{batch}"] = rounds
    return Reading({"steps_per_cpu_s": values}, all_rounds)


def python_policy() -> Reading:
    """Steps per CPU-second when a policy is called at every step; the answer is that of the compiled loop."""
    run = scenes.client_run(PYTHON_BATCH, PYTHON_REQUESTS)
    done, rounds = timed(lambda: run.serve(compiled=False), 5)
    compiled = run.serve()
    _check_batch(scenes.mean_batch(done), PYTHON_BATCH)
    check(
        (done.steps, done.mean_tpot_s) == (compiled.steps, compiled.mean_tpot_s),
        f"{done.steps} steps with a TPOT of {done.mean_tpot_s} s, where the compiled loop takes "
        f"{compiled.steps} with {compiled.mean_tpot_s} s",
    )
    return Reading({"python_policy_steps_per_s": done.steps / rounds.best_cpu_s}, {"python_policy": rounds})


def search() -> Reading:
    """Seconds of a search over batch tables: 200 trials of ten simulated minutes at 64 QPS, two workers."""
    load = {"qps": scenes.QPS, "replicas": scenes.REPLICAS, "requests": FAST_REQUESTS}
    asked_tokens = scenes.table_run(FAST_REQUESTS).asked_tokens
    asked = Asked(trials=TRIALS, workers=WORKERS)
    found, rounds = timed(lambda: optimize(make_scenario(load), asked), 1, warm=False)
    tried = found.trials.measured
    served = [one for one in tried if one.output_tokens == asked_tokens]
    check(len(served) == TRIALS, f"{len(served)} trials served every request, {TRIALS} were asked for")
    best = lowest(found.all, found.greedy, "tpot")
    check(
        best is not None and float(log_ratios(best, found.greedy, "tpot").mean()) <= 0,
        "the best policy found is worse than the first one tried",
    )
    return Reading({"search_200_trials_s": rounds.best_wall_s}, {"search": rounds})


def _check_batch(mean: float, meant: int) -> None:
    check(abs(mean / meant - 1) <= 0.02, f"the mean batch was {mean:.2f}, {meant} was meant")


FIGURES: dict[str, Callable[[], Reading]] = {
    "startup": startup,
    "recommend": recommend,
    "million_requests": million,
    "linear": linear,
    "fast_path": fast_path,
    "steps": steps,
    "python_policy": python_policy,
    "search": search,
}
"""What can be measured, by the name that ``--only`` takes, in the order measured."""
