"""Tables as files: what ships holds together, and a bad file is one line that says what to mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplan.errors import InputError
from kplan.validate.load import load_tables, shipped_tables
from kplan.validate.predict import PREDICTORS, load_predictor

GOOD = """
name: mine
title: mine
source: me
trust: direct
metric: tpot_ms
predictor: closed-loop
rows:
  - {measured: 6.3, at: {batch: 1, k: 0}}
"""


def test_every_shipped_table_is_called_like_its_file_and_has_a_predictor() -> None:
    for table in shipped_tables():
        assert load_tables([table.name]) == (table,)
        assert callable(load_predictor(table.predictor))
    assert {table.predictor for table in shipped_tables()} <= set(PREDICTORS)


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(GOOD.replace("mine", "b"), encoding="utf-8")
    (tmp_path / "a.yaml").write_text(GOOD, encoding="utf-8")
    assert [table.name for table in load_tables([str(tmp_path)])] == ["mine", "b"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (GOOD.replace("6.3", "0"), "rows.0.measured: Input should be greater than 0"),
        (GOOD.replace("6.3", ".nan"), "rows.0.measured"),
        (GOOD.replace("tpot_ms", "tpot"), "metric: Input should be"),
        (GOOD + "  - {measured: 6.3, at: {batch: 1}}\n", "row 2 is given at"),
        (GOOD.partition("rows")[0], "rows: Field required"),
        (GOOD + "colour: red\n", "colour: Extra inputs"),
        ("name: [", "is not YAML"),
        ("", "the file: Input should be"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, wrong: str, says: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(wrong, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_tables([str(file)])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_not_there_names_close_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean pr32374-off"):
        load_tables(["pr32374-of"])
    with pytest.raises(InputError, match=r"holds no \.yaml file"):
        load_tables([str(tmp_path)])
    with pytest.raises(InputError, match="is given twice"):
        load_tables(["pr32374-off", "pr32374-off"])
    with pytest.raises(InputError, match="cannot be read"):
        load_tables([str(tmp_path / "none.yaml")])
