"""Storage: secrets stay out, a study belongs to one search, the dead are told from the living."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from kplan.errors import InputError
from kplan.search import storage
from kplan.search.storage import Coordinators, Patience, check_identity, opened, shown
from tests.search.servers import postgres, wait_for


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with postgres(tmp_path_factory.mktemp("pg")) as server:
        yield server


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("runs/x.journal", "runs/x.journal"),
        ("postgresql://me:secret@db.example:5432/kplan", "postgresql://db.example:5432/kplan"),
        ("postgresql://db/kplan?password=secret&user=me", "postgresql://db/kplan"),
        ("postgresql://me:sec?ret@db/kplan", "postgresql://db/kplan"),
        ("postgresql://me:sec@secret@db/kplan", "postgresql://db/kplan"),
        ("postgresql://me:secret@db:port/kplan", "postgresql://..."),
        ("postgresql:/me:secret@db/kplan", "postgresql://..."),
        ("postgres:me:secret@db/kplan", "postgres://..."),
        ("postgres", "postgres"),
    ],
)
def test_no_secret_of_a_url_is_shown(given: str, told: str) -> None:
    assert shown(given) == told
    assert "secret" not in shown(given)


@pytest.mark.parametrize(
    "url",
    ["postgresql://me:x@secret@127.0.0.1:1/kplan", "postgresql:/me:secret@db/kplan", "postgres:me:secret@db"],
)
def test_a_url_that_is_none_keeps_its_secret(url: str) -> None:
    with pytest.raises(InputError, match="is no URL") as caught, opened(url):
        pass
    assert "secret" not in str(caught.value)


def test_a_database_that_is_not_there_is_one_line_without_its_secret() -> None:
    url = "postgresql://me:secret@127.0.0.1:1/kplan?connect_timeout=1"
    with pytest.raises(InputError) as caught, opened(url):
        pass
    assert str(caught.value).startswith(
        "--storage: got 'postgresql://127.0.0.1:1/kplan', the database cannot be used"
    )
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"hello", b"hello\n", b"[1]", b"\xff\n", b'{"op_code": 0}\nnonsense\n{}\n']
)
def test_a_file_that_is_no_journal_is_refused_and_kept(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no journal of a study, or a damaged one"), opened(str(path)):
        pass
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/dev/null", "is a folder or device"),
        ("/proc/x.journal", "cannot be written"),
        ("/tmp", "is a folder"),
    ],
)
def test_what_cannot_hold_a_journal_is_one_line(path: str, told: str) -> None:
    with pytest.raises(InputError, match=f"--storage: got '{path}', {told}"), opened(path):
        pass


def test_a_line_that_was_half_written_is_cut_and_the_journal_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with opened(str(path)) as where:
        study = optuna.create_study(storage=where, study_name="cut")
        study.tell(study.ask(), 1.0)
        study.set_user_attr("lost", 1)
    path.write_bytes(path.read_bytes()[:-5])
    with opened(str(path)) as where:
        study = optuna.load_study(storage=where, study_name="cut")
        study.tell(study.ask(), 2.0)
    with opened(str(path)) as where:
        study = optuna.load_study(storage=where, study_name="cut")
        assert [one.value for one in study.trials] == [1.0, 2.0]
        assert study.user_attrs == {}


def test_a_study_lives_in_postgresql(database: Any) -> None:
    with opened(database.get_uri()) as where:
        study = optuna.create_study(storage=where, study_name="lives")
        trial = study.ask()
        trial.set_user_attr("points", [[[0.1] * 8] * 20] * 5)  # five seeds of twenty cases
        study.tell(trial, 0.25)
    with opened(database.get_uri()) as where:
        again = optuna.load_study(storage=where, study_name="lives")
        assert again.trials[0].values == [0.25]
        assert len(again.trials[0].user_attrs["points"][0]) == 20
    assert "1" in database.psql("select count(*) from trials")


def test_a_study_belongs_to_one_search() -> None:
    study = optuna.create_study(study_name="mine")
    check_identity(study, {"loads": [1], "versions": {"kplan": "1"}})
    check_identity(study, {"loads": [1], "versions": {"kplan": "1"}})
    with pytest.raises(
        InputError, match=r"'mine', holds another search: its loads and versions \(kplan 1, here 2\) differ"
    ):
        check_identity(study, {"loads": [2], "versions": {"kplan": "2"}})


def running(study: optuna.Study, owner: str | None) -> optuna.trial.FrozenTrial:
    trial = study.ask()
    if owner is not None:
        trial.set_user_attr("owner", owner)
    return study.trials[trial.number]


def test_a_living_coordinator_keeps_its_trials_and_one_that_left_does_not() -> None:
    study = optuna.create_study()
    mine, other = Coordinators(study), Coordinators(study)
    with other.alive():
        sign = study.user_attrs[f"coordinator:{other.me}"]
        living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        study.set_user_attr(f"coordinator:{other.me}", sign | {"pid": living.pid})
        trial = running(study, other.me)
        assert not mine.left(trial)
        living.kill()
        living.wait()
        assert mine.left(trial)
    assert study.user_attrs[f"coordinator:{other.me}"]["beat"] is None
    assert mine.left(trial)
    assert mine.left(running(study, mine.me))  # asked while nothing is in hand


def test_a_coordinator_elsewhere_is_given_up_when_its_signs_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study()
    mine = Coordinators(study)
    far = {"place": "another machine", "pid": os.getpid(), "beat": 0}
    study.set_user_attr("coordinator:far", far)
    trial, unmarked = running(study, "far"), running(study, None)
    now = time.monotonic()
    for after_s, beat, left in [(0, 0, False), (50, 1, False), (105, 1, False), (111, 1, True)]:
        study.set_user_attr("coordinator:far", far | {"beat": beat})
        monkeypatch.setattr(storage.time, "monotonic", lambda after_s=after_s: now + after_s)
        assert mine.left(trial) is left
        assert mine.left(unmarked) is (after_s > 60)


def test_a_trial_that_nobody_signed_is_nobodys_once_all_are_gone() -> None:
    """Its coordinator was killed between asking for it and signing it: who comes next goes on with it."""
    study = optuna.create_study()
    mine, other = Coordinators(study), Coordinators(study)
    unmarked = running(study, None)
    assert mine.left(unmarked)
    with other.alive():
        living = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        sign = study.user_attrs[f"coordinator:{other.me}"]
        study.set_user_attr(f"coordinator:{other.me}", sign | {"pid": living.pid})
        assert not mine.left(unmarked)
        living.kill()
        living.wait()
        assert mine.left(unmarked)


def test_signs_of_life_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "BEAT_S", 0.02)
    study = optuna.create_study()
    mine = Coordinators(study)
    with mine.alive():
        wait_for(lambda: study.user_attrs[f"coordinator:{mine.me}"]["beat"] >= 3, 5, "no sign of life")


def test_a_database_that_goes_away_is_waited_for_and_said(tmp_path: Path) -> None:
    told: list[str] = []
    with postgres(tmp_path) as server, opened(server.get_uri()) as where:
        study = optuna.create_study(storage=where, study_name="away")
        patience = Patience(told.append, "postgresql://here")
        study.tell(study.ask(), 1.0)
        control = [str(server.bin_path / "pg_ctl"), "-D", str(server.pgdata), "-w"]
        user = {"user": server.system_user} if server.system_user else {}
        subprocess.run([*control, "stop", "-m", "immediate"], check=True, capture_output=True, **user)
        back = threading.Timer(2.0, server.start)
        back.start()
        trial = patience(study.ask)
        patience(lambda: study.tell(trial, 2.0, skip_if_finished=True))
        back.join()
        assert [one.value for one in study.get_trials() if one.value is not None] == [1.0, 2.0]
    assert told == [
        "the storage postgresql://here does not answer: waiting for it",
        "the storage postgresql://here is back",
    ]
