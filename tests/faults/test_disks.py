"""A disk that refuses: one line that names the file, nothing half-written, what was there intact."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.files import write_text, write_texts
from kplan.live.recording import open_recording
from kplan.search.journal import open_journal

REFUSALS = {
    errno.ENOSPC: "free some of the disk",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "ulimit -f",
    errno.EIO: "look at the disk",
    errno.EROFS: "name a folder that exists and is yours",
    errno.EACCES: "name a folder that exists and is yours",
    errno.EMFILE: "ulimit -n",
}
CALLS = ("open", "fsync", "replace")
NAMES = ("mark.json", "one.yaml", "two.html")


def refusing(monkeypatch: pytest.MonkeyPatch, call: str, nth: int, code: int) -> None:
    """The ``nth`` such call on a hidden file, and no other, fails."""
    owner, name = (Path, "replace") if call == "replace" else (os, call)
    real: Callable[..., object] = getattr(owner, name)
    met: list[int] = []

    def struck(*args: object, **named: object) -> object:
        if call == "fsync" or "kplan-tmp" in str(args[0]):
            met.append(1)
            if len(met) == nth:
                raise OSError(code, os.strerror(code))
        return real(*args, **named)

    monkeypatch.setattr(owner, name, struck)


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("call", CALLS)
def test_a_refused_set_leaves_the_old_one(
    call: str, nth: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts({tmp_path / name: "old" for name in NAMES})
    (tmp_path / "gone").write_text("old")
    refusing(monkeypatch, call, nth, code)
    with pytest.raises(InputError) as caught:
        write_texts({tmp_path / name: "new" for name in NAMES}, [tmp_path / "gone"])
    told = str(caught.value)
    assert any(f"got '{tmp_path / name}', cannot be written ({os.strerror(code)})" in told for name in NAMES)
    assert REFUSALS[code] in told
    assert sorted(one.name for one in tmp_path.iterdir()) == ["gone", *NAMES]
    assert {one.read_text() for one in tmp_path.iterdir()} == {"old"}


@pytest.fixture
def small_disk() -> object:
    """No file grows beyond 64 bytes; Python ignores the signal, so that a write says EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_in_the_middle_of_a_file(tmp_path: Path, small_disk: Callable[[], None]) -> None:
    write_text("old", tmp_path / "a")
    small_disk()
    with pytest.raises(InputError, match="File too large"):
        write_text("new" * 1000, tmp_path / "a")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_row_that_does_not_fit_is_not_there_by_half(tmp_path: Path, small_disk: Callable[[], None]) -> None:
    path = tmp_path / "a.jsonl"
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    with open_recording(path, {}) as recording:
        recording.begin_run({})
        small_disk()
        with pytest.raises(InputError, match=r"a\.jsonl', cannot be written \(File too large\)"):
            recording.append(0, {"usage": usage, "chunks": [1], "pad": "x" * 100})
        assert path.read_bytes() == b""


def test_a_line_of_a_journal_that_does_not_fit_is_not_there_by_half(
    tmp_path: Path, small_disk: Callable[[], None]
) -> None:
    path = tmp_path / "a.journal"
    open_journal(path)
    small_disk()
    storage = open_journal(path)
    with pytest.raises(InputError, match=r"--storage: got .*a\.journal', cannot be written"):
        storage.create_new_study([], "a name that is longer than what is left of the disk" * 2)
    assert path.read_bytes() == b""


def test_a_folder_that_goes_away_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    real = os.fsync

    def removed(handle: int) -> None:
        real(handle)
        for one in folder.iterdir():
            one.unlink()
        folder.rmdir()

    monkeypatch.setattr(os, "fsync", removed)
    with pytest.raises(InputError, match="cannot be written"):
        write_text("new", folder / "a")
    assert not folder.exists()


def test_a_target_that_becomes_a_folder_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def taken(handle: int) -> None:
        real(handle)
        (tmp_path / "a").mkdir(exist_ok=True)

    monkeypatch.setattr(os, "fsync", taken)
    for others in ([], [tmp_path / "b"]):
        with pytest.raises(InputError, match="a', is a folder"):
            write_texts({tmp_path / "a": "new"} | dict.fromkeys(others, "new"))
        assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_for_a_full_disk_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert run(["profiles", "engines", "--json"]) == 2
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
    assert capfd.readouterr().err == "error: the output cannot be written (No space left on device)\n"
