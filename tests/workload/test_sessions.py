"""Sessions: who waits for whom, and the history that turns share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplan.errors import InputError
from kplan.provenance import Kind, Provenance
from kplan.workload import RequestLog, load_log, session_prefix

MADE = Provenance(Kind.ASSUMED, "made for a test")


def made_log(turns: list[tuple[int, int, int]]) -> RequestLog:
    """A log of (prompt, output, index it follows or -1)."""
    prompt, output, follows = (np.array(column, np.int64) for column in zip(*turns, strict=True))
    return RequestLog(
        np.arange(len(turns), dtype=np.float64), prompt, output, follows, None, None, MADE, notes=()
    )


def texts(log: RequestLog) -> list[list[tuple[int, int]]]:
    """Every request's tokens as (who wrote it, position): a turn repeats the one before, then goes on."""
    written: list[list[tuple[int, int]]] = []
    assert log.follows is not None
    for i, (prompt, output, before) in enumerate(
        zip(log.prompt_len, log.output_len, log.follows, strict=True)
    ):
        history = written[before][:prompt] if before >= 0 else []
        written.append(history + [(i, at) for at in range(len(history), prompt + output)])
    return written


@st.composite
def turns(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    return [
        (draw(st.integers(1, 40)), draw(st.integers(1, 20)), draw(st.integers(-1, i - 1)))
        for i in range(draw(st.integers(1, 12)))
    ]


@given(turns(), st.integers(1, 9))
def test_ids_are_alike_exactly_where_the_texts_are_alike_up_to_there(
    rows: list[tuple[int, int, int]], unit: int
) -> None:
    log = made_log(rows)
    prefix = session_prefix(log, unit)
    owner: dict[tuple[tuple[int, int], ...], int] = {}
    expected = [
        owner.setdefault(tuple(text[:end]), len(owner))
        for text in texts(log)
        for end in range(unit, len(text) + 1, unit)
    ]
    assert prefix.ids.tolist() == expected
    assert np.diff(prefix.offsets).tolist() == [(p + o) // unit for p, o, _ in rows]


def test_a_turn_with_a_shorter_prompt_shares_only_that_far() -> None:
    prefix = session_prefix(made_log([(16, 16, -1), (20, 12, 0)]), 8)
    assert prefix.ids.tolist() == [0, 1, 2, 3, 0, 1, 4, 5], "20 tokens are two whole units of 8"


def test_a_log_without_sessions_has_no_history_to_share(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("t_s,input_tokens,output_tokens\n0,8,8\n")
    log = load_log(tmp_path / "a.csv")
    assert log.follows is None
    with pytest.raises(InputError, match="session_id"):
        session_prefix(log, 8)
    with pytest.raises(InputError, match="at least 1"):
        session_prefix(made_log([(8, 8, -1)]), 0)


def chats(tmp_path: Path, rows: str) -> RequestLog:
    path = tmp_path / "chats.csv"
    path.write_text("timestamp,input_length,output_length,chat_id,parent_chat_id\n" + rows)
    return load_log(path)


def test_parents_make_sessions_that_may_branch(tmp_path: Path) -> None:
    log = chats(tmp_path, "1,8,8,70,-1\n2,8,8,71,70\n3,8,8,72,70\n4,8,8,73,72\n5,8,8,74,\n")
    assert log.follows is not None
    assert log.follows.tolist() == [-1, 0, 0, 2, -1]
    assert log.notes == ()


def test_a_parent_that_is_not_before_its_child_is_counted(tmp_path: Path) -> None:
    log = chats(tmp_path, "1,8,8,70,99\n2,8,8,71,72\n3,8,8,72,72\n4,8,8,73,70\n")
    assert log.follows is not None
    assert log.follows.tolist() == [-1, -1, -1, 0]
    assert log.notes == ("3 requests name a parent that is not before them: each starts a session",)


@pytest.mark.parametrize(
    ("rows", "shown"), [("1,8,8,70,-1\n2,8,8,70,-1\n", "'70'"), ("1,8,8,,-1\n", "nothing")]
)
def test_each_request_needs_an_id_of_its_own(tmp_path: Path, rows: str, shown: str) -> None:
    with pytest.raises(InputError, match=f"column chat_id: got .*{shown}"):
        chats(tmp_path, rows)
