"""Commands ended at random moments: what they write is whole or absent, and the next run goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna

from kplan.acceptance import load_traces
from kplan.cli.files import read_plan
from kplan.errors import InputError
from kplan.export import plan_json
from kplan.profiles import load_calibration
from kplan.search.storage import opened
from tests.acceptance.made import dump, recording_row, write_lines
from tests.cli.screen import KPLAN
from tests.export.sample import make_plan
from tests.latency.test_fit_measured import write_log
from tests.search.servers import SMALL, environment
from tests.soak.figures import seconds, tell

ENDS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)
LONGEST_S = 240.0
"""Of one run of one command, on a busy machine."""


@dataclass
class Command:
    """A command that is killed again and again.

    Attributes:
        argv: what is run.
        check: raises where what it wrote is torn; returns how much is there for good.
        usual_s: how long it took when nobody killed it.
    """

    argv: list[str]
    check: Callable[[], int]
    usual_s: float = 0.0


def commands(folder: Path) -> dict[str, Command]:
    """Every kind of writer: a set of files, a table, a fit, a journal."""
    plan, out = folder / "plan.json", folder / "out"
    plan.write_text(plan_json(make_plan()), encoding="utf-8")
    rows = write_lines(folder / "rows.jsonl", [dump(recording_row()) for _ in range(200)])
    log = write_log(folder / "steps.jsonl", (1, 16, 128))
    trace, fit, journal = folder / "a.parquet", folder / "c.yaml", folder / "a.journal"

    def plan_is_whole() -> int:
        if not (out / "plan.json").exists():
            return 0
        assert read_plan(out / "plan.json") == read_plan(plan)
        assert {"vllm.yaml", "sglang.yaml", "report.html"} <= {one.name for one in out.iterdir()}
        return 1

    def trace_is_whole() -> int:
        return len(load_traces(trace)) if trace.exists() else 0

    def fit_is_whole() -> int:
        return len(load_calibration(str(fit)).hardware) if fit.exists() else 0

    def trials_are_there() -> int:
        if not journal.exists():
            return 0
        with opened(str(journal)) as where:
            names = optuna.get_all_study_names(where)
            found = optuna.load_study(study_name=names[0], storage=where).get_trials() if names else []
        return sum(one.state.is_finished() for one in found)

    search = ["search", *SMALL, "--trials", "16", "--workers", "1", "--storage", str(journal), "--json"]
    return {
        "export": Command(["export", str(plan), "--out", str(out)], plan_is_whole),
        "import": Command(["traces", "import", str(rows), "--out", str(trace)], trace_is_whole),
        "calibrate": Command(
            ["calibrate", "--steps", str(log), "--partial", "--out", str(fit)], fit_is_whole
        ),
        "search": Command(search, trials_are_there),
    }


def start(command: Command, said: Path) -> subprocess.Popen[bytes]:
    """Run it in a group of its own, so that a kill is one of all it started; ``said`` gets its errors."""
    with said.open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, *KPLAN, *command.argv],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], number: signal.Signals, said: Path) -> None:
    """End it. What is asked to end either is done already or says so, and never shows a traceback."""
    os.killpg(process.pid, number)
    code = process.wait(LONGEST_S)
    if number != signal.SIGKILL:
        assert code in (0, 128 + number, -number), code  # the last: before its own handler stands
        assert "Traceback" not in said.read_text(encoding="utf-8"), said.read_text(encoding="utf-8")


def test_kills_at_random_moments_tear_nothing(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw, made, said = random.Random(seed), commands(tmp_path), tmp_path / "said.txt"
    for command in made.values():
        begin = time.monotonic()
        assert start(command, said).wait(LONGEST_S) == 0
        command.usual_s = time.monotonic() - begin
    kills, torn, lost, runs = 0, 0, 0, len(made)
    end_s = time.monotonic() + seconds(300.0)
    while time.monotonic() < end_s:
        name, command = draw.choice(sorted(made.items()))
        if draw.random() < 0.3:
            for left in tmp_path.glob("a.journal*" if name == "search" else "a.parquet"):
                left.unlink()
        before = command.check()
        process = start(command, said)
        time.sleep(draw.uniform(0.3, 1.05) * command.usual_s)
        if process.poll() is None:
            kills += 1
            end(process, draw.choice(ENDS), said)
        try:
            lost += max(0, before - command.check())
        except (InputError, AssertionError, ValueError) as error:
            torn += 1
            print(f"{name}, kill {kills}: {error}")
        assert start(command, said).wait(LONGEST_S) == 0, f"{name} does not go on after kill {kills}"
        runs += 2
    assert kills
    assert [one.name for one in tmp_path.rglob(".*.kplan-*")] == []
    tell("kills", kills=kills, commands=len(made), runs=runs, torn=torn, trials_lost=lost)
    assert (torn, lost) == (0, 0)
