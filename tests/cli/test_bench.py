"""``kplan bench``: its record, its refusals, and how it takes time and memory."""

from __future__ import annotations

import gc
import json
from dataclasses import replace

import numpy as np
import pytest

from kplan.bench import figures, scenes
from kplan.bench.child import run_child
from kplan.bench.rounds import timed
from kplan.bench.targets import Target
from kplan.cli.app import run
from kplan.errors import InfeasibleError
from kplan.metrics import Measured
from kplan.simulate import run_policy

BAR = "import time; end = time.process_time() + 0.05\nwhile time.process_time() < end: pass\nprint('done')"


def test_one_figure_comes_with_its_target_its_rounds_and_the_machine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench", "--only", "startup", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert set(record) == {"startup_s", "targets", "rounds", "machine", "versions"}
    assert 0 < record["startup_s"] < 60
    assert record["startup_s"] == min(record["rounds"]["startup"]["wall_s"])
    assert len(record["rounds"]["startup"]["cpu_s"]) == 5
    met = record["startup_s"] <= 0.5
    assert record["targets"] == {
        "startup_s": {"bound": 0.5, "is": "most", "value": record["startup_s"], "met": met}
    }
    assert set(record["machine"]) == {"kplan", "python", "numpy", "numba", "cores"}


def test_the_table_names_every_figure_in_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--only", "startup"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["figure", "value", "target", "met"]
    assert lines[2].split()[0] == "startup_s"
    assert "at most 0.5" in lines[2]


def test_an_unknown_figure_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--only", "speed"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "--only: got 'speed'" in told
    for name in ("startup", "recommend", "million_requests", "linear", "fast_path", "steps", "search"):
        assert name in told


def test_work_that_was_not_done_is_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lazy(*args: object, **kwargs: object) -> Measured:
        done = run_policy(*args, **kwargs)  # type: ignore[arg-type]  # passed through
        return replace(done, output_tokens=done.output_tokens - 1)

    monkeypatch.setattr(scenes, "run_policy", lazy)
    monkeypatch.setattr(figures, "FAST_REQUESTS", 200)
    assert run(["bench", "--only", "fast_path"]) == 1
    assert "not measured, for the work was not done" in capsys.readouterr().err


def test_a_batch_other_than_meant_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FAST_REQUESTS", 200)
    monkeypatch.setattr(scenes, "QPS", 4.0)  # one request/s and replica: batches of a few
    with pytest.raises(InfeasibleError, match="at least 32 was meant"):
        figures.fast_path()


def test_rounds_are_timed_without_the_collector_after_one_that_is_not() -> None:
    collecting = []
    answer, rounds = timed(lambda: collecting.append(gc.isenabled()) or len(collecting), 3)
    assert answer == 4
    assert collecting == [True, False, False, False]
    assert gc.isenabled()
    assert len(rounds.cpu_s) == len(rounds.wall_s) == 3


def test_a_process_is_charged_its_own_cpu_time() -> None:
    told, rounds = run_child(["-c", BAR], 2)
    assert told == "done\n"
    assert all(cpu_s >= 0.05 for cpu_s in rounds.cpu_s)
    with pytest.raises(InfeasibleError, match="code 1: ValueError: no"):
        run_child(["-c", "raise ValueError('no')"], 1)


def test_the_peak_of_a_process_is_not_that_of_the_one_that_started_it() -> None:
    held = np.ones(75_000_000)  # 600 MB, touched
    told, _ = run_child(["-c", "from kplan.bench.child import peak_bytes; print(peak_bytes())"], 1)
    assert held.nbytes == 600_000_000
    assert 20e6 < int(told) < 5e8
    grow = "from kplan.bench.child import peak_bytes; x = b'1' * 600_000_000; del x; print(peak_bytes())"
    told, _ = run_child(["-c", grow], 1)
    assert int(told) > 600_000_000


def test_targets_are_judged_where_the_figure_was_measured() -> None:
    record = {"million_requests": {"wall_s": 20.5}, "rate": 7.0}
    slow = Target("million_requests.wall_s", 20.0).judge(record)
    assert slow == {"bound": 20.0, "is": "most", "value": 20.5, "met": False}
    fast = Target("rate", 7.0, at_least=True).judge(record)
    assert fast == {"bound": 7.0, "is": "least", "value": 7.0, "met": True}
    assert Target("million_requests.peak_gib", 3.0).judge(record) is None
    assert Target("recommend_s", 15.0).judge(record) is None
