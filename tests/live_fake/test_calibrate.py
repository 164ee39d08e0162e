"""What ``kplan calibrate --url`` measures, against a server and a step log whose truth is known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.latency.fit_steps import read_steps
from kplan.live import Server
from kplan.live.calibrate import Plan, Seen, default_held_out, measure, save_rows
from kplan.live.sweep import Driver, Setting
from kplan.telling import silent
from tests.live_fake.fake import VOCABULARY, Engine, FakeServer, Faults

STEP_S = 0.01


def plan(**changed: object) -> Plan:
    """Two batches, one of them held out, by the client's clock."""
    given: dict[str, object] = {
        "batches": (1, 3),
        "held_out": frozenset({3}),
        "prompts": (8,),
        "output_tokens": 12,
        "repeats": 1,
        "limit_s": 60.0,
        "steplog": None,
        "proposer": None,
    }
    return Plan(**(given | changed))  # type: ignore[arg-type]


def seen(fake: FakeServer, asked: Plan) -> Seen:
    """The rows of a plan."""
    with Server(fake.url) as server:
        return measure(server, server.info(), VOCABULARY, asked)


def test_the_first_requests_are_staggered_and_the_others_whole() -> None:
    assert Setting(4, 8, 20, rounds=1).outputs() == [5, 10, 15, 20, 20, 20, 20, 20]
    assert Setting(1, 8, 20, rounds=2).outputs() == [20, 20, 20]


def test_a_closed_loop_keeps_its_size_and_sends_prompts_that_no_cache_holds() -> None:
    with FakeServer(Engine(k=0, step_s=STEP_S)) as fake, Server(fake.url) as server:
        driver = Driver(server, server.info(), VOCABULARY, lambda: 0, 60.0)
        (lap,) = driver.laps([Setting(3, 8, 12, rounds=2)], silent)
        prompts = [one.prompt for one in fake.done]
        assert fake.most_running == 3
    assert len(set(prompts)) == len(prompts) == 9
    assert {len(prompt) for prompt in prompts} == {8}
    assert sorted(len(one.tokens) for one in fake.done) == [4, 8] + [12] * 7
    assert lap.window.grown("output_tokens") == 4 + 8 + 7 * 12
    assert len(lap.tpot_s) >= 1
    assert (lap.tpot_s > STEP_S / 2).all()  # a token a step, which takes no less; a busy client sees it late


def test_settings_that_do_not_fit_into_the_time_are_left_out() -> None:
    """Thirty settings of 36 steps and more take longer than six seconds, and a few of them do not."""
    with FakeServer(Engine(k=0, step_s=STEP_S)) as fake:
        found = seen(fake, plan(batches=tuple(range(1, 31)), held_out=frozenset(), limit_s=6.0))
    assert 1 <= len(found.fitted) < 30
    assert "of 30 settings did not fit into 6 s" in found.notes[-1]


def test_rows_by_the_clients_clock_carry_k_and_acceptance_of_the_server() -> None:
    """All drafts are right: a step gives K + 1 tokens, so that its time is K + 1 times that of a token."""
    with FakeServer(Engine(k=2, alpha=1.0, step_s=STEP_S)) as fake:
        found = seen(fake, plan(proposer="draft-model", output_tokens=31))
    assert [(row.k, row.proposer) for row in found.fitted + found.held] == [(2, "draft-model")] * 2
    for row, batch in zip(found.fitted + found.held, (1, 3), strict=True):
        assert row.seconds > STEP_S / 2  # no less than a step; a busy client sees the first token late
        assert row.mean("decode_tokens") == pytest.approx(3 * row.mean("decode_requests"))
        assert row.batch == pytest.approx(batch)


@pytest.mark.parametrize(
    ("engine", "faults", "asked", "told"),
    [
        (Engine(k=2), Faults(), plan(), "--proposer"),
        (Engine(name="sglang", version="0.5.23"), Faults(), plan(proposer="eagle3"), "--tpot"),
        (Engine(max_model_len=16), Faults(), plan(), "exceeds the server's 16"),
        (Engine(), Faults(fail=lambda path, _: 500 if "completions" in path else None), plan(), "500"),
        (Engine(k=0, step_s=0.05), Faults(), plan(limit_s=0.2), "--limit-s"),
        (Engine(k=0), Faults(), plan(steplog=Path("/nowhere/steps.jsonl")), "--steplog"),
        (Engine(k=0), Faults(), plan(steplog=Path(__file__)), "did not grow"),
    ],
)
def test_what_cannot_be_measured_is_one_line(engine: Engine, faults: Faults, asked: Plan, told: str) -> None:
    with FakeServer(engine, faults) as fake, pytest.raises(InputError) as caught:
        seen(fake, asked)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rows_that_are_saved_are_read_back_as_they_were(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    steps = [
        {"gap_ms": 9.5, "gen_r": 3, "gen_t": 9, "ctx_r": 1, "ctx_t": 40, "held": 300},
        {"gap_ms": 8.5, "gen_r": 4, "gen_t": 4, "ctx_r": 0, "ctx_t": 0, "held": 410},
    ]
    log.write_text("".join(json.dumps(step) + "\n" for step in steps))
    rows = tuple(read_steps(log, proposer="draft-model"))
    saved = tmp_path / "saved.jsonl"
    save_rows(Seen(rows, (), ()), saved)
    for row, again in zip(rows, read_steps(saved), strict=True):
        assert (again.seconds, again.k, again.proposer) == (row.seconds, row.k, row.proposer)
        np.testing.assert_array_equal(again.shapes, row.shapes)


def test_batches_held_out_lie_between_fitted_ones() -> None:
    assert default_held_out((1, 2, 4, 8, 16, 32)) == {4}
    assert default_held_out((1, 2, 4, 8, 12, 16, 24, 32)) == {4, 16}
    assert default_held_out((1, 2)) == frozenset()


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--batches", "1,x"], "--batches"),
        (["--batches", "0"], "--batches"),
        (["--hold-out", "5"], "is not among --batches"),
        (["--batches", "2", "--hold-out", "2"], "leaves no batch"),
        (["--output-tokens", "1"], "--output-tokens"),
        (["--limit-s", "0"], "--limit-s"),
        (["--proposer", "eagel"], "eagel"),
        (["--drafter", "nowhere", "--proposer", "draft-model"], "nowhere"),
    ],
)
def test_bad_flags_are_told_before_the_server_is_asked(
    argv: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer() as fake:
        assert run(["calibrate", "--url", fake.url, "--out", str(tmp_path / "out.yaml"), *argv]) == 2
        assert not fake.asked
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_log_and_saved_rows_belong_to_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--steplog", "--save-steps"):
        assert run(["calibrate", flag, str(tmp_path / "x"), "--out", str(tmp_path / "out.yaml")]) == 2
        assert f"{flag}: got" in capsys.readouterr().err
