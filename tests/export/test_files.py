"""Plans on disk: whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.export import export_engines, plan_json, write_plan
from kplan.files import write_text, write_texts
from tests.export.sample import DRAFTERS, MODEL, answered, drafter, make_plan, result, table_plans

EAGLE3 = DRAFTERS["eagle3"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_writes_every_file_and_the_plan_reads_back(tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder"
    paths = write_plan(make_plan(), out, MODEL, EAGLE3, report_html="<p>report</p>")
    assert [path.name for path in paths] == [
        "plan.json",
        "vllm.yaml",
        "sglang.yaml",
        "sglang_adaptive.json",
        "report.html",
    ]
    assert names(out) == {path.name for path in paths}
    assert Plan.model_validate_json(paths[0].read_text()) == make_plan()


@given(plan=table_plans())
def test_any_plan_reads_back(plan: Plan) -> None:
    assert Plan.model_validate_json(plan_json(plan)) == plan


def test_a_second_plan_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    write_plan(make_plan(), tmp_path, MODEL, EAGLE3)
    write_plan(answered("fixed:2", k=2), tmp_path, MODEL, DRAFTERS["ngram"])
    assert names(tmp_path) == {"plan.json", "vllm.yaml", "sglang.yaml"}


def test_same_plan_same_bytes(tmp_path: Path) -> None:
    one = {p.name: p.read_bytes() for p in write_plan(make_plan(), tmp_path / "a", MODEL, EAGLE3)}
    two = {p.name: p.read_bytes() for p in write_plan(make_plan(), tmp_path / "b", MODEL, EAGLE3)}
    assert one == two


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_folder_that_cannot_be_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written") as caught:
        write_plan(make_plan(), tmp_path / place, MODEL, EAGLE3)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_refused_plan_touches_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_plan(answered("oracle"), tmp_path / "out", MODEL, EAGLE3)
    assert names(tmp_path) == set()


def test_a_plan_holds_nothing_that_json_cannot() -> None:
    with pytest.raises(ValueError, match="finite"):
        make_plan(policies=(result("off", output_tok_s=float("nan")),))


def test_a_write_that_fails_keeps_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "plan.json"
    write_text("old", target)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        write_plan(make_plan(), tmp_path, MODEL, EAGLE3)
    assert target.read_text() == "old"
    assert names(tmp_path) == {"plan.json"}


def test_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    path = tmp_path / "ours"
    write_text("text", path)
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_only_the_other_engine_may_refuse() -> None:
    suffix = drafter("suffix", None, "suffix", "")
    exports = export_engines(answered("fixed:4", k=4), MODEL, suffix)
    assert set(exports.engines) == {"vllm"}
    assert "no such method" in exports.refused["sglang"]
    with pytest.raises(InputError, match="no such method"):
        export_engines(answered("fixed:4", k=4, engine="sglang"), MODEL, suffix)


def test_a_folder_in_the_way_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "vllm.yaml").mkdir()
    with pytest.raises(InputError, match=r"vllm\.yaml"):
        write_plan(make_plan(), tmp_path, MODEL, EAGLE3)
    assert names(tmp_path) == {"vllm.yaml"}


def test_several_texts_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_texts({tmp_path / "a": "1", tmp_path / "b": "2"})
    assert names(tmp_path) == {"b"}
    write_texts({tmp_path / "a": "1", tmp_path / "c": "2"})
    assert ((tmp_path / "a").read_text(), (tmp_path / "c").read_text()) == ("1", "2")
    assert names(tmp_path) == {"a", "b", "c"}
