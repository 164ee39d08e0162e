"""Killed at any moment: a target is whole or absent, nothing finished is lost, and the next run goes on."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import optuna
import pytest

from kplan.acceptance import load_traces
from kplan.cli.app import run
from kplan.cli.files import read_plan
from kplan.errors import InputError
from kplan.export import export_engines, write_exports
from kplan.files import replacing, write_text, write_texts
from kplan.live.recording import open_recording, sidecar
from kplan.locks import alone
from kplan.search.storage import opened
from tests.acceptance.made import dump, recording_row, write_lines
from tests.export.sample import DRAFTERS, MODEL
from tests.faults.struck import command, killed_at_each

SET = ("mark.json", "one.yaml", "two.html")


def write_set(folder: Path, text: str) -> None:
    """Three files of one writing, and one that an earlier writing had."""
    write_texts({folder / name: text for name in SET}, [folder / "gone.json"])


def seen(folder: Path) -> list[str]:
    """What a person sees in a folder."""
    return sorted(one.name for one in folder.iterdir() if not one.name.startswith("."))


def test_a_set_is_of_one_writing_wherever_its_mark_stands(tmp_path: Path) -> None:
    folder, marked = tmp_path / "set", {"old": 0, "new": 0, "": 0}
    folder.mkdir()
    for _ in killed_at_each(folder, write_set, folder, "new"):
        mark = folder / "mark.json"
        found = mark.read_text() if mark.exists() else ""
        marked[found] += 1
        if found:
            texts = {(folder / name).read_text() for name in SET}
            assert texts == {found}
            assert (folder / "gone.json").exists() == (found == "old")
        for name in seen(folder):
            assert (folder / name).read_text() in ("old", "new")
        if not found and any(one.name.startswith(".mark.json.") for one in folder.iterdir()):
            with pytest.raises(InputError, match="was cut short while it was written"):
                read_plan(mark)
        write_set(folder, "old")
        (folder / "gone.json").write_text("old")
        assert sorted(one.name for one in folder.iterdir()) == [
            "gone.json",
            *SET,
        ]  # no leftover of the killed
    assert all(marked.values()), marked
    assert seen(folder) == list(SET)


def test_export_leaves_one_plan_or_says_that_it_was_cut(
    tmp_path: Path, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked, told = read_plan(plan), set()
    exports = export_engines(asked, MODEL, DRAFTERS["eagle3"])
    write = partial(write_exports, asked, exports, out, report_html="<html></html>")
    for _ in killed_at_each(tmp_path, write):
        if (out / "plan.json").exists():
            assert read_plan(out / "plan.json") == asked
            assert {"vllm.yaml", "sglang.yaml", "report.html"} <= set(seen(out))
        elif out.exists() and len(told) < 2:  # both are met early, and the command takes its time
            assert run(["report", str(out)]) == 2
            told.add(capsys.readouterr().err.splitlines()[-1].partition(", ")[2].partition(";")[0])
    write()
    assert not [one for one in out.iterdir() if one.name.startswith(".")]
    assert told == {
        "the folder holds no plan.json or leaderboard.json",
        "was cut short while it was written, or is being written",
    }


def test_import_leaves_the_old_trace_or_the_new(tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    for rows in (2, 3):
        file = write_lines(tmp_path / f"{rows}.jsonl", [dump(recording_row()) for _ in range(rows)])
        argv = ["traces", "import", str(file), "--out"]
        assert run([*argv, str(tmp_path / "other.parquet")]) == 0  # so that no fork imports what it needs
        for _ in killed_at_each(tmp_path, command, [*argv, str(out)]):
            if out.exists():
                assert len(load_traces(out)) in (rows - 1, rows)
            else:
                assert rows == 2
        assert len(load_traces(out)) == rows
        assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def record_rows(path: Path, acknowledged: Path) -> None:
    """A run of three rows, sorted at its end; what was added for good is said outside."""
    with open_recording(path, {"k": 4}) as recording:
        recording.begin_run({})
        for index in range(2, -1, -1):
            if index not in recording.rows:
                usage = {"prompt_tokens": 1, "completion_tokens": 1}
                recording.append(index, {"usage": usage, "chunks": [1]})
                acknowledged.write_text(acknowledged.read_text() + f"{index}\n")
        recording.close_run({})
        recording.sort()


def test_a_recording_loses_no_row_that_was_added(tmp_path: Path) -> None:
    folder, said = tmp_path / "rows", tmp_path / "said"
    folder.mkdir()
    said.write_text("")
    path, acknowledged_most = folder / "a.jsonl", 0
    for moment in killed_at_each(folder, record_rows, path, said):
        added = {int(line) for line in said.read_text().split()}
        acknowledged_most = max(acknowledged_most, len(added))
        with open_recording(path, {"k": 4}) as recording:
            assert added <= set(recording.rows), f"moment {moment}"
            assert [row["index"] for row in recording.read()] == list(recording.rows)
        record_rows(path, said)
        with open_recording(path, {"k": 4}) as recording:
            assert [row["index"] for row in recording.read()] == [0, 1, 2]
        assert seen(folder) == [one.name for one in sorted(folder.iterdir())]
        path.unlink()
        sidecar(path).unlink()
        said.write_text("")
    assert acknowledged_most == 3


def tell_trials(journal: Path, acknowledged: Path, trials: int) -> None:
    """Trials up to ``trials``, each said outside when it is told for good."""
    with opened(str(journal)) as where:
        study = optuna.create_study(storage=where, study_name="one", load_if_exists=True)
        while len(done := [one for one in study.get_trials() if one.value is not None]) < trials:
            study.tell(study.ask(), float(len(done)))
            acknowledged.write_text(f"{len(done) + 1}")


def test_a_journal_loses_no_trial_that_was_told(tmp_path: Path) -> None:
    said, most = tmp_path / "said", 0
    folder = tmp_path / "journal"
    folder.mkdir()
    path = folder / "a.journal"
    said.write_text("0")
    for _ in killed_at_each(folder, tell_trials, path, said, 3):
        told = int(said.read_text())
        most = max(most, told)
        with opened(str(path)) as where:
            names = optuna.get_all_study_names(where)
            trials = optuna.load_study(study_name="one", storage=where).get_trials() if names else []
        assert sum(one.value is not None for one in trials) >= told
        tell_trials(path, said, 3)
        assert [one.name for one in folder.iterdir()] == ["a.journal"]
        path.unlink()
        said.write_text("0")
    assert most == 2  # after the last one nothing is done


def test_the_next_writer_removes_what_nobody_holds_and_nothing_else(tmp_path: Path) -> None:
    dead, foreign = tmp_path / ".a.0123abcd.kplan-tmp", tmp_path / ".a.backup.kplan-tmp"
    dead.write_text("half")
    foreign.write_text("a user's own")
    with replacing(tmp_path / "a") as sink:
        sink.write(b"one")
        (living,) = (one for one in tmp_path.iterdir() if one not in (dead, foreign))
        write_text("two", tmp_path / "a")
        assert living.exists()
    assert (tmp_path / "a").read_text() == "one"
    assert sorted(one.name for one in tmp_path.iterdir()) == [".a.backup.kplan-tmp", "a"]


def test_a_recording_has_one_writer_and_the_other_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with open_recording(path, {}), pytest.raises(InputError) as caught, open_recording(path, {}):
        pass
    bound = f"another process is writing it (process {os.getpid()})"
    assert str(caught.value) == f"--out: got '{path}', {bound}; wait for its end, or name another file"
    with alone("--out", path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("foreign", ["a.jsonl", "a.jsonl.meta.json"])
def test_restart_removes_no_file_that_is_not_ours(foreign: str, tmp_path: Path) -> None:
    (tmp_path / foreign).write_text('{"mine": 1}\n')
    refused = pytest.raises(InputError, match="is no recording of this command, and is not removed")
    with refused, open_recording(tmp_path / "a.jsonl", {}, restart=True):
        pass
    assert (tmp_path / foreign).read_text() == '{"mine": 1}\n'
