"""The n-gram replay against the rule spelled out, and against what a server recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplan.acceptance import replay_ngram
from kplan.errors import InputError
from tests.acceptance.made import plain_ngram

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=25)


@settings(deadline=None)  # the first call compiles
@given(tokens, tokens, st.integers(1, 4), st.integers(0, 3), st.integers(1, 8))
def test_replay_is_the_rule(prompt: list[int], generated: list[int], low: int, more: int, k: int) -> None:
    acc, drafted = replay_ngram(
        np.array(prompt, np.int32), np.array(generated, np.int32), lookup_min=low, lookup_max=low + more, k=k
    )
    assert (acc[0], drafted[0]) == (1, 0)
    for i in range(1, len(generated)):
        draft = plain_ngram(prompt + generated[:i], low, low + more, k)
        right = 0
        while right < min(len(draft), len(generated) - i) and draft[right] == generated[i + right]:
            right += 1
        assert drafted[i] == len(draft)
        assert acc[i] == min(right + 1, len(generated) - i)


def test_the_longest_match_wins_over_the_earliest() -> None:
    prompt = [1, 2, 9, 0, 3, 1, 2, 8, 0]
    # After [3, 1, 2] the 3-gram at 4 says 8; the earlier 2-gram [1, 2] at 0 says 9.
    acc, drafted = replay_ngram(
        np.array(prompt, np.int32), np.array([3, 1, 2, 8, 7], np.int32), lookup_min=2, lookup_max=3, k=1
    )
    assert (acc[3], drafted[3]) == (2, 1)


@pytest.mark.parametrize(
    ("low", "high", "k", "generated"),
    [(0, 3, 3, [1]), (4, 3, 3, [1]), (1, 2**63, 3, [1]), (1, 3, 0, [1]), (1, 3, 255, [1]), (1, 1, 1, [])],
)
def test_bad_arguments_are_refused(low: int, high: int, k: int, generated: list[int]) -> None:
    with pytest.raises(InputError):
        replay_ngram(
            np.array([1], np.int32), np.array(generated, np.int32), lookup_min=low, lookup_max=high, k=k
        )


@pytest.mark.shared
def test_replay_agrees_with_the_recordings(shared_dir: Path) -> None:
    recorded = pd.read_parquet(shared_dir / "data" / "acceptance_traces.parquet")
    ids = pd.read_parquet(shared_dir / "data" / "token_ids.parquet").set_index(["dataset", "request_id"])
    positions = same = offers_same = 0
    for row in recorded.itertuples():
        tokens = ids.loc[(row.dataset, row.request_id)]
        acc, drafted = replay_ngram(
            tokens.prompt_token_ids, tokens.generated_token_ids, lookup_min=3, lookup_max=7, k=20
        )
        left = np.arange(len(acc), 0, -1)
        positions += len(acc)
        same += int(np.count_nonzero(acc == np.minimum(row.acc_ngram.astype(np.int64), left)))
        offers_same += int(np.count_nonzero(drafted[1:] == row.ngram_match_k[1:])) + 1
    assert (positions, same) == (406_378, 406_377)
    assert offers_same >= 0.9999 * positions
