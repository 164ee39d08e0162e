"""A search outlives its processes: killed and resumed, shared by two, with a worker shot under it."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from kplan.search.storage import opened
from tests.search.servers import dask_cluster, finish, postgres, start_search, wait_for

TRIALS = "24"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Counter[str]]:
    """The search without any accident, on one worker: its JSON, and the policies tried."""
    folder = tmp_path_factory.mktemp("straight")
    told = finish(start_search(folder, "--trials", TRIALS, "--workers", "1", "--storage", "a.journal"))
    return told, tried(str(folder / "a.journal"))


def study_in(storage: str) -> list[optuna.trial.FrozenTrial]:
    with opened(storage) as where:
        names = optuna.get_all_study_names(where)
        return optuna.load_study(study_name=names[0], storage=where).get_trials() if names else []


def done(trials: list[optuna.trial.FrozenTrial]) -> list[optuna.trial.FrozenTrial]:
    return [one for one in trials if one.state in (TrialState.COMPLETE, TrialState.PRUNED)]


def tried(storage: str) -> Counter[str]:
    return Counter(one.user_attrs["policy"] for one in done(study_in(storage)))


def test_killed_in_the_middle_it_goes_on_and_no_finished_trial_is_lost(
    tmp_path: Path, straight: tuple[dict[str, Any], Counter[str]]
) -> None:
    journal = str(tmp_path / "a.journal")
    arguments = ("--trials", TRIALS, "--workers", "1", "--storage", journal)
    first = start_search(tmp_path, *arguments)
    wait_for(lambda: Path(journal).exists() and len(done(study_in(journal))) >= 8, 90, "nothing was finished")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = done(study_in(journal))
    assert 8 <= len(before) < 24
    told = finish(start_search(tmp_path, *arguments))
    after = study_in(journal)
    assert [one for one in after if one.number in {each.number for each in before}] == before
    assert not [one for one in after if one.state == TrialState.RUNNING]
    assert told["trials"]["done"] == 24
    assert told["trials"]["found"] == len(before)
    assert tried(journal) == straight[1]
    for key in ("best", "runnable", "lowest", "gaps"):
        assert told[key] == straight[0][key]


KILLED_UNSIGNED = """
import os, signal, optuna
real, asked = optuna.Trial.set_user_attr, []
def struck(trial, key, value):
    asked.extend([key] if key == "owner" else [])
    if len(asked) == 10:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(trial, key, value)
optuna.Trial.set_user_attr = struck
"""


def test_killed_between_asking_for_a_trial_and_signing_it(
    tmp_path: Path, straight: tuple[dict[str, Any], Counter[str]]
) -> None:
    journal = str(tmp_path / "a.journal")
    arguments = ("--trials", TRIALS, "--workers", "1", "--storage", journal)
    killed = start_search(tmp_path, *arguments, before=KILLED_UNSIGNED)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    (unsigned,) = (one for one in study_in(journal) if "owner" not in one.user_attrs and one.number == 9)
    assert unsigned.state == TrialState.RUNNING
    finish(start_search(tmp_path, *arguments))
    assert tried(journal) == straight[1]


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=str)
def test_ended_politely_it_leaves_no_process_and_no_file_but_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, code: int
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    journal = tmp_path / "a.journal"
    arguments = ("--trials", "500", "--workers", "2", "--storage", str(journal), "--out", "out")
    search = start_search(tmp_path, *arguments)
    wait_for(lambda: journal.exists() and done(study_in(str(journal))), 90, "nothing was finished")
    children = Path(f"/proc/{search.pid}/task/{search.pid}/children").read_text(encoding="ascii").split()
    search.send_signal(sent)
    out, _ = search.communicate(timeout=30)
    assert (search.returncode, out) == (code, "")
    assert len(children) >= 2
    wait_for(lambda: not any(Path(f"/proc/{one}").exists() for one in children), 10, "a worker lives on")
    assert [one.name for one in tmp_path.iterdir() if one.name != "tmp"] == ["a.journal"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_ctrl_c_while_the_workers_start_is_one_line(tmp_path: Path) -> None:
    """A terminal sends it to every process of the command, those that still import among them."""
    search = start_search(tmp_path, "--trials", "500", "--workers", "2", group=True)
    own = Path(f"/proc/{search.pid}/task/{search.pid}/children")

    def starting() -> bool:
        commands = (Path(f"/proc/{one}/cmdline") for one in own.read_text(encoding="ascii").split())
        return sum(b"spawn_main" in one.read_bytes() for one in commands) == 2

    wait_for(starting, 90, "no worker was started")
    os.killpg(search.pid, signal.SIGINT)
    out, err = search.communicate(timeout=60)
    assert (search.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("interrupted")


def test_two_dask_workers_find_the_same_and_one_may_be_shot(
    tmp_path: Path, straight: tuple[dict[str, Any], Counter[str]]
) -> None:
    journal = str(tmp_path / "a.journal")
    with dask_cluster(tmp_path, 2) as dask:
        search = start_search(tmp_path, "--trials", TRIALS, "--cluster", dask.address, "--storage", journal)
        wait_for(lambda: Path(journal).exists() and len(study_in(journal)) > 8, 90, "nothing was asked for")
        dask.workers[0].send_signal(signal.SIGKILL)
        told = finish(search)
    assert tried(journal) == straight[1]
    for key in ("best", "runnable", "lowest", "gaps"):
        assert told[key] == straight[0][key]


def test_two_coordinators_share_a_study_in_postgresql(tmp_path: Path) -> None:
    with postgres(tmp_path) as server:
        uri = server.get_uri()
        arguments = ("--trials", TRIALS, "--workers", "1", "--storage", uri, "--study", "shared")
        both = [start_search(tmp_path, *arguments) for _ in range(2)]
        told = [finish(one) for one in both]
        trials = study_in(uri)
        assert Counter(one.state for one in trials if one.state != TrialState.FAIL) == Counter(
            one.state for one in done(trials)
        )
        owners = Counter(one.user_attrs["owner"] for one in done(trials))
    assert len(done(trials)) == 24
    assert len(owners) == 2
    assert [one["trials"]["done"] for one in told] == [24, 24]
    assert told[0]["best"] == told[1]["best"]
    assert told[0]["gaps"] == told[1]["gaps"]
