"""The reference parquet, damaged: one line with file, row and column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kplan.acceptance import load_traces
from kplan.errors import InputError


def frame(**changes: Any) -> pd.DataFrame:
    """Two requests; ``changes`` replace the second one's values."""
    row: dict[str, Any] = {
        "dataset": "d", "request_id": 1, "prompt_len": 5, "output_len": 3, "eagle_len": 2,
        "eagle_aligned": False, "loopy": False, "acc_ngram": [1, 2, 1],
        "acc_eagle": [1, 9], "ngram_match_k": [0, 3, 0],
    }  # fmt: skip
    return pd.DataFrame([row, {**row, **changes}])


def test_the_known_anomalies_are_read_and_counted(tmp_path: Path) -> None:
    frame(loopy=True).to_parquet(tmp_path / "r.parquet")
    found = load_traces(tmp_path / "r.parquet", "d")
    assert found.proposers["eagle3"].aligned.tolist() == [False, False]
    assert found.proposers["eagle3"].output_len.tolist() == [2, 2]
    assert found.proposers["eagle3"].acc.tolist() == [1, 1, 1, 1]  # a step that ran past the end is clipped
    assert found.loopy is not None
    assert found.loopy.tolist() == [False, True]
    notes = " | ".join(found.notes)
    for words in ("2 rows belong to another generation", "eagle3: 2 positions ran past", "1 rows degenerate"):
        assert words in notes


DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "short": ({"acc_ngram": [1, 2]}, "row 2, column acc_ngram: got '2 values', its output has 3 tokens"),
    "short offer": ({"ngram_match_k": [0, 3]}, "row 2, column ngram_match_k: got '2 values'"),
    "negative": ({"acc_ngram": [1, -2, 1]}, "row 2, column acc_ngram[1]: got -2"),
    "above K": ({"acc_eagle": [1, 22]}, "row 2, column acc_eagle[1]: got 22"),
    "prefill": ({"acc_eagle": [2, 1]}, "row 2, column acc_eagle[0]: got 2"),
    "negative length": ({"output_len": -3}, "row 2, column output_len: got '-3'"),
    "nan length": ({"prompt_len": float("nan")}, "row 2, column prompt_len: got 'nan'"),
}


@pytest.mark.parametrize(("changes", "expected"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_row_is_named(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    frame(**changes).to_parquet(tmp_path / "r.parquet")
    with pytest.raises(InputError) as error:
        load_traces(tmp_path / "r.parquet", "d")
    assert f"r.parquet, {expected}" in str(error.value)
    assert "\n" not in str(error.value)


def test_fractions_in_place_of_integers_are_named(tmp_path: Path) -> None:
    made = frame()
    made["acc_ngram"] = [[1.0, 2.0, 1.0], [1.0, float("nan"), 1.0]]
    made.to_parquet(tmp_path / "r.parquet")
    with pytest.raises(InputError, match=r"r\.parquet, row 1, column acc_ngram\[0\]: got '1\.0'"):
        load_traces(tmp_path / "r.parquet", "d")
