"""The ends of what can be asked: each is refused in a line, or has an answer computed here by other means."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kplan.cli.app import run
from kplan.config.scenario import MAX_SPAN_S, make_scenario
from kplan.engine import Load, Replica, Traces, kernel
from kplan.errors import InputError
from kplan.metrics import interval
from kplan.registry import parse_policy
from kplan.search.evaluate import evaluate, paired_speedup
from kplan.simulate import UNBOUNDED, draw_requests, prepare
from tests.engine.scenes import ByTable, bare_price, bounds, make_load

UNIT_S = 0.01
UNIT = bare_price(np.full(300, UNIT_S))
"""Every step takes one unit, whatever is in it."""


def serve(load: Load, k: int = 0, **changes: Any) -> Replica:
    replica = Replica(load, bounds(load, max_k=k, **changes), UNIT, ByTable(k))
    assert replica.advance() == kernel.DONE
    return replica


def alike(n: int, output: int, emits: int = 1, prompt: int = 1, clients: int | None = None) -> Load:
    """``n`` requests at t = 0 of ``output`` tokens, whose every step could emit ``emits``."""
    made = make_load(n, prompt=(prompt, prompt), output=(output, output), clients=clients)
    acc = np.full(n * output, emits, np.uint8)
    traces = Traces(acc, np.full(n * output, 255, np.uint8))
    return replace(made, arrival_s=np.zeros(n), traces=traces)


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object (which holds no NaN) and stderr of ``kplan simulate --json``."""
    code = run(["simulate", "--json", *argv])
    out, err = capsys.readouterr()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return code, json.loads(out, parse_constant=refuse) if out else {}, err


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code, shown, err = ask(capsys, *argv)
    assert code == 2
    assert not shown
    assert err.count("\n") == 1
    return err


SMALL = ("--requests", "24", "--max-num-seqs", "4", "--prompt-tokens", "20", "--output-tokens", "8")


# what can be counted


def test_one_request_takes_one_step_of_prefill_and_one_per_token_after() -> None:
    replica = serve(alike(1, output=7))
    req = replica.requests
    assert req.first_token_s[0] == pytest.approx(UNIT_S)
    assert req.finish_s[0] == pytest.approx(7 * UNIT_S)
    assert req.steps[0] == 6


def test_one_token_is_the_prefill_s_and_has_no_tpot(capsys: pytest.CaptureFixture[str]) -> None:
    req = serve(alike(5, output=1), k=3).requests
    assert (req.finish_s == req.first_token_s).all()
    assert (req.steps == 0).all()
    argv = (*SMALL[:-1], "1", "--qps", "4", "--slo-tpot-ms", "5")
    code, shown, _ = ask(capsys, *argv)
    assert code == 0, "no token comes late where none comes after the first"
    assert shown["tpot_ms"] is None
    assert shown["speedup_vs_off"] is None
    assert shown["acceptance_length"] == 0
    assert shown["slo_share"] == 1


@pytest.mark.parametrize("emits", [1, 2, 9])
@pytest.mark.parametrize("k", [0, 1, 3, 8])
def test_certain_acceptance_emits_what_it_must(emits: int, k: int) -> None:
    """Acceptance 0 is one token a step, acceptance 1 is K + 1 of them; the last step is cut at the end."""
    output = 50
    req = serve(alike(3, output=output, emits=emits), k=k).requests
    assert (req.steps == math.ceil((output - 1) / min(emits, k + 1))).all()
    assert (req.emitted == output).all()


def test_k_above_the_output_is_cut_at_its_end() -> None:
    req = serve(alike(4, output=3, emits=255), k=254, max_num_batched_tokens=2048).requests
    assert (req.steps == 1).all()
    assert (req.emitted == 3).all()


def test_drafts_end_at_the_longest_context_the_server_takes() -> None:
    """At max_len the step has room for max_len - 1 - computed tokens; K is 30, and 5 tokens fit."""
    load = alike(1, output=6, emits=255, prompt=10)
    req = serve(load, k=30, max_len=16).requests
    assert req.proposed[0] == 16 - 1 - 10 - 1
    assert req.emitted[0] == 6


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_budget_below_k_plus_1_verifies_what_it_holds(tokens: int) -> None:
    """The prompt comes in prompt / tokens steps; each step after it verifies tokens - 1 drafts of K = 3."""
    req = serve(alike(1, output=31, emits=4, prompt=6), k=3, max_num_batched_tokens=tokens).requests
    assert req.first_token_s[0] == pytest.approx(math.ceil(6 / tokens) * UNIT_S)
    assert req.steps[0] == math.ceil(30 / tokens)


def test_one_seat_serves_one_after_the_other() -> None:
    req = serve(alike(9, output=5), max_num_seqs=1).requests
    np.testing.assert_allclose(req.finish_s, (np.arange(9) + 1) * 5 * UNIT_S)


def test_a_request_above_the_whole_kv_cache_is_refused_and_one_that_fills_it_is_served() -> None:
    load = alike(2, output=32, prompt=32)
    assert serve(load, total_blocks=5).requests.emitted.tolist() == [32, 32]
    with pytest.raises(InputError, match="the KV cache of one replica holds 64 tokens"):
        serve(load, total_blocks=4)


def test_a_batch_above_the_kv_cache_thrashes_and_loses_nothing() -> None:
    load = alike(64, output=100, prompt=30)
    replica = serve(load, k=2, total_blocks=20)
    req = replica.requests
    assert req.preempted.sum() > 0
    assert (req.emitted == 100).all()
    assert replica.machine.counters[9] == 20, "every block came back"


def test_ten_thousand_requests_at_once_are_served_in_order() -> None:
    """Seats 64, one unit a step, 5 tokens each: every batch of 64 takes 5 steps and the next follows."""
    n, output = 10_000, 5
    req = serve(alike(n, output=output)).requests
    done = (np.arange(n) // 64 + 1) * output * UNIT_S
    np.testing.assert_allclose(req.finish_s, done, rtol=1e-9)


def test_what_a_request_may_draft_is_counted_in_32_bits() -> None:
    """10 million steps at K = 254 would draft 2.5e9 tokens, above 2^31 - 1: refused before it wraps."""
    load = Load(
        arrival_s=np.zeros(1), prompt_len=np.array([1]), output_len=np.array([10_000_000]),
        trace_at=np.array([0]), traces=Traces(np.ones(1, np.uint8), np.zeros(0, np.uint8)),
    )  # fmt: skip
    with pytest.raises(InputError, match="may draft 2540000000 tokens, and 2147483647 are counted"):
        Replica(load, bounds(load, max_k=254, total_blocks=10**6), UNIT, ByTable(254))


def test_a_clock_of_ten_million_steps_does_not_drift() -> None:
    """10^7 additions of 0.01 s may be off by half a bit of 1e5 s each; the exact sum is 1e5 s."""
    n = 10_000_000
    load = alike(1, output=n)
    req = serve(load, total_blocks=n // 16 + 2).requests
    assert req.finish_s[0] == pytest.approx(n * UNIT_S, rel=1e-9)


def test_tpot_of_a_run_of_centuries_is_that_of_a_run_of_seconds() -> None:
    """Near MAX_SPAN_S the clock counts in 2 microseconds: 5 ms steps are still right to 0.04%."""
    load = alike(1, output=1000)
    late = replace(load, arrival_s=np.array([0.999 * MAX_SPAN_S]))
    now, then = serve(load).requests, serve(late).requests
    took = [float((one.finish_s - one.first_token_s)[0]) for one in (now, then)]
    assert took[1] == pytest.approx(took[0], rel=4e-4)


# what is refused, and said


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--qps", "1e-9"), "--qps: got 1e-09, input should be greater than or equal to 0.000001"),
        (("--qps", "1e9"), "--qps: got 1000000000.0, input should be less than or equal to 100000"),
        (("--qps", "nan"), "--qps: got nan, input should be a finite number"),
        (("--qps", "4", "--output-tokens", "0"), "--output-tokens: got 0"),
        (("--qps", "4", "--slo-tpot-ms", "0"), "--slo-tpot-ms: got 0.0, input should be greater than 0"),
        (("--qps", "4", "--replicas", "0"), "--replicas: got 0"),
        (("--qps", "4", "--replicas", "1000000"), "--replicas: got 1000000"),
        (("--qps", "4", "--tp", "3"), "got 3, must divide 32 heads (8 of KV) and the MLPs; use one of"),
        (("--qps", "4", "--prompt-tokens", "200000"), "every prompt reaches the context of 131072 tokens"),
        (("--qps", "4", "--max-k", "255"), "--max-k: got 255, input should be less than or equal to 254"),
        (("--qps", "4", "--arrivals", "ramp", "--ramp-to-qps", "0"), "--ramp-to-qps: got 0.0"),
        (("--qps", "4", "--burstiness", "0"), "--burstiness: got 0.0"),
        (("--concurrency", "4", "--think-s", "-1"), "--think-s: got -1.0"),
        (("--qps", "1e-6", "--requests", "10000000"), "10000000 of them span 1e+13 s"),
        (("--concurrency", "1", "--requests", "1000000", "--think-s", "86400"), "span 8.64e+10 s"),
    ],
)
def test_what_has_no_answer_is_refused(
    argv: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, *argv)


@pytest.mark.parametrize(
    "argv",
    [
        ("--qps", "1e-6"),
        ("--qps", "4", "--burstiness", "0.001"),
        ("--qps", "4", "--burstiness", "1e6"),
        ("--qps", "4", "--arrivals", "ramp", "--ramp-to-qps", "1e-6"),
        ("--concurrency", "4", "--think-s", "0"),
        ("--concurrency", "4", "--think-s", "86400"),
    ],
)
def test_a_load_at_its_end_is_served(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = ask(capsys, *argv, *SMALL)
    assert code == 0
    assert shown["output_tokens"] == 24 * 8, "every request gets its 8 tokens"
    assert shown["tpot_ms"]["ci95"] is None, "one replication says nothing of its spread"


def test_a_load_above_any_server_is_called_saturated(capsys: pytest.CaptureFixture[str]) -> None:
    code, shown, _ = ask(capsys, "--qps", "100000", "--requests", "400", *SMALL[2:])
    assert code == 1
    assert shown["saturated"]
    assert shown["tpot_ms"] is None
    assert shown["max_qps"] < 100_000


def test_an_slo_that_nothing_meets_is_an_answer_with_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--qps", "4", *SMALL, "--slo-ttft-ms", "1e-300")
    code, shown, _ = ask(capsys, *argv)
    assert code == 1
    assert not shown["meets_slo"]
    assert shown["slo_share"] == 0
    assert shown["max_qps_slo"] == 0
    assert run(["simulate", *argv]) == 1
    assert "the SLO is missed: 0.0% of requests meet it, and 90% must" in " ".join(
        capsys.readouterr().out.split()
    )


def test_two_identical_policies_are_a_tie_of_no_width() -> None:
    setup = prepare(make_scenario({"qps": 4, "requests": 24, "prompt_tokens": 20, "output_tokens": 8}))
    drawn = [draw_requests(setup, 24, seed) for seed in range(3)]
    one, two = (evaluate(setup, parse_policy("fixed:3"), drawn, 1, UNBOUNDED) for _ in range(2))
    assert paired_speedup(one, two) == (1.0, (1.0, 1.0))


def test_an_interval_needs_two_replications() -> None:
    """Student's t for n = 2 is 12.706; both values 1 +- 0.5, so half a width is 12.706 x 0.7071 / 1.4142."""
    assert interval(np.array([1.0])) is None
    assert interval(np.array([])) is None
    assert interval(np.array([3.0, 3.0])) == (3.0, 3.0)
    low, high = interval(np.array([0.5, 1.5])) or (0.0, 0.0)
    assert (high - low) / 2 == pytest.approx(12.706 * 0.5, rel=1e-4)


def test_the_bandwidth_of_a_gpu_is_never_zero(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """No time that is finite comes of a bandwidth of 0, nor one that means anything of 1e-300."""
    for value in ("0", "-0.0", "1e-300", ".nan", ".inf"):
        file = tmp_path / "gpu.yaml"
        file.write_text(_GPU.replace("BANDWIDTH", value))
        told = refused(capsys, "--qps", "4", "--hardware", str(file))
        assert "bandwidth_bytes_s.value" in told


_GPU = """
name: h100-sxm
summary: none
memory_bytes: {value: 8.0e+10, kind: assumed, source: none}
bandwidth_bytes_s: {value: BANDWIDTH, kind: assumed, source: none}
peak_flops: {value: 1.0e+15, kind: assumed, source: none}
sources: {none: none}
provenance: {kind: assumed, source: none}
"""
