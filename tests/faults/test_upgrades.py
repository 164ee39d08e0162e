"""Files of another release: a newer one is told as newer, an older one with the command that makes it anew.

Every kind of file of :mod:`kplan.formats` has its door here, so that a new kind cannot be forgotten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from kplan import formats
from kplan.acceptance.figures import load_figures
from kplan.acceptance.joint_file import load_pair
from kplan.acceptance.model_file import load_model
from kplan.acceptance.store import METADATA_KEY, load_own
from kplan.cli.app import run
from kplan.cli.files import read_plan
from kplan.config import plan as plan_file
from kplan.config.scenario import load_scenario
from kplan.errors import InputError
from kplan.formats import KEY, Format
from kplan.latency.fit_steps import read_steps
from kplan.live.recording import open_recording, sidecar
from kplan.profiles import load_engine, load_hardware
from kplan.profiles.load import KINDS, parse
from kplan.profiles.schema import DrafterFile, ModelFile
from kplan.profiles.schema_calibration import CalibrationFile
from kplan.provenance import versions
from kplan.search.board_file import read as read_board
from kplan.search.storage import check_identity
from kplan.validate.baseline import load_baseline
from kplan.validate.load import load_tables
from kplan.workload.profile import load_workload
from tests.export.sample import make_plan

SHIPPED = files("kplan_profiles")
BOARD = {
    "kind": "simulated", "rows": [], "summary": [], "notes": [], "replications": 2, "versions": {},
    "scenario": {"model": "m", "hardware": "h", "engine": "e"},
}  # fmt: skip
FIGURES = {
    "proposer": "eagle", "kind": "marginal", "recorded_k": 2, "values": [0.6, 0.3], "how": "measured",
    "source": "a test",
}  # fmt: skip
STEP = {"step_s": 0.01, "decode_requests": 1, "decode_tokens": 1, "kv_tokens": 9}
NONE = object()
"""The file does not say its version."""


def marked(record: dict[str, Any], version: object) -> dict[str, Any]:
    """``record`` with this version in place of its own."""
    rest = {key: value for key, value in record.items() if key != KEY}
    return rest if version is NONE else {KEY: version, **rest}


def a_file(
    record: dict[str, Any], read: Callable[[Path], object], name: str, dump: Callable[[dict[str, Any]], str]
) -> Callable[[Path, object], object]:
    """The door of a kind that is one mapping, written by ``dump``."""

    def door(folder: Path, version: object) -> object:
        path = folder / name
        path.write_text(dump(marked(record, version)), encoding="utf-8")
        return read(path)

    return door


a_json = partial(a_file, name="file.json", dump=json.dumps)
a_yaml = partial(a_file, name="file.yaml", dump=yaml.safe_dump)


def shipped(kind: str, name: str) -> dict[str, Any]:
    """The content of a file that comes with kplan."""
    text = (SHIPPED / kind / name).read_text(encoding="utf-8")
    return dict(json.loads(text) if name.endswith(".json") else yaml.safe_load(text))


def a_trace(folder: Path, version: object) -> object:
    table = pq.read_table(str(SHIPPED / "traces" / "example.parquet"))
    meta = json.loads(table.schema.metadata[METADATA_KEY])
    path = folder / "t.parquet"
    told = {METADATA_KEY: json.dumps(marked(meta, version)).encode()}
    pq.write_table(pa.table(table).replace_schema_metadata(told), path)
    return load_own(path)


def a_recording(folder: Path, version: object) -> object:
    path = folder / "r.jsonl"
    sidecar(path).write_text(json.dumps(marked({"settings": {}, "runs": []}, version)), encoding="utf-8")
    with open_recording(path, {}) as recording:
        return recording


def a_step_log(folder: Path, version: object) -> object:
    path = folder / "steps.jsonl"
    lines = [{"log": marked({"model": "m"}, version)}, STEP]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    return read_steps(path)


def a_study(_: Path, version: object) -> None:
    study = optuna.create_study(study_name="s")
    check_identity(study, {"loads": ["12"]})
    assert study.user_attrs[KEY] == formats.STUDY.version
    study._storage._studies[study._study_id].user_attrs.pop(KEY)  # type: ignore[attr-defined]
    if version is not NONE:
        study.set_user_attr(KEY, version)
    check_identity(study, {"loads": ["12"]})


DOORS: dict[str, Callable[[Path, object], object]] = {
    "PLAN": a_json(make_plan().model_dump(mode="json"), read_plan),
    "LEADERBOARD": a_json(BOARD, read_board),
    "STUDY": a_study,
    "BASELINE": a_json({"tables": {}, "versions": {}}, load_baseline),
    "TRACES": a_trace,
    "FIGURES": a_json(FIGURES, load_figures),
    "TRACE_MODEL": a_json(shipped("workloads", "gsm8k-ngram.json"), load_model),
    "PAIR": a_json(shipped("workloads", "gsm8k-ngram+eagle3.json"), load_pair),
    "RECORDING": a_recording,
    "STEP_LOG": a_step_log,
    "SCENARIO": a_yaml({"qps": 4}, lambda path: load_scenario(path, {}, {})),
    "WORKLOAD": a_yaml(shipped("workloads", "gsm8k.yaml"), load_workload),
    "TABLE": a_yaml(shipped("published", "pr32374-off.yaml"), lambda path: load_tables([str(path)])),
    "hardware": a_yaml(shipped("hardware", "h100-sxm.yaml"), load_hardware),
    "models": a_yaml(shipped("models", "llama-3.1-8b.yaml"), lambda path: parse("models", path, ModelFile)),
    "drafters": a_yaml(shipped("drafters", "eagle3.yaml"), lambda path: parse("drafters", path, DrafterFile)),
    "calibrations": a_yaml(
        shipped("calibrations", "h100-sxm.yaml"), lambda path: parse("calibrations", path, CalibrationFile)
    ),
    "engines": a_yaml(shipped("engines", "vllm.yaml"), load_engine),
}
WRITTEN_ONLY = {"RECORDS", "SEARCH"}
"""kplan writes these and reads none of them back."""


def kinds() -> dict[str, Format]:
    """Every kind of file, by its name in kplan.formats or among its profiles."""
    own = {name: one for name, one in vars(formats).items() if isinstance(one, Format)}
    return own | formats.PROFILES


def refused(door: Callable[[Path, object], object], folder: Path, version: object) -> str:
    """What is said of a file of this version."""
    with pytest.raises(InputError) as error:
        door(folder, version)
    told = str(error.value)
    assert "\n" not in told
    assert KEY in told
    return told


def test_every_kind_of_file_has_a_door_here() -> None:
    assert set(DOORS) == set(kinds()) - WRITTEN_ONLY
    assert set(KINDS) == set(formats.PROFILES)


@pytest.mark.parametrize("name", DOORS)
def test_a_file_of_this_release_is_read_and_a_newer_one_told_as_newer(name: str, tmp_path: Path) -> None:
    kind, door = kinds()[name], DOORS[name]
    door(tmp_path, kind.version)
    for older in range(kind.oldest, kind.version):
        door(tmp_path, older)
    told = refused(door, tmp_path, kind.version + 1)
    assert f"got {kind.version + 1}, made by a newer kplan; {kind.reads}" in told
    assert formats.UPGRADE in told


@pytest.mark.parametrize("name", DOORS)
def test_a_file_too_old_names_the_command_that_makes_it_anew(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As once a later release reads only its own version: the readers ask the table."""
    kind, door = kinds()[name], DOORS[name]
    monkeypatch.setitem(kind.__dict__, "oldest", kind.version + 1)
    monkeypatch.setitem(kind.__dict__, "version", kind.version + 1)
    told = refused(door, tmp_path, kind.version - 1)
    assert "made by an older kplan" in told
    assert kind.renew in told


@pytest.mark.parametrize("version", [0, -1, "1", 1.0, True, [1]])
@pytest.mark.parametrize("name", DOORS)
def test_a_version_that_is_none_is_no_version(name: str, version: object, tmp_path: Path) -> None:
    assert kinds()[name].reads in refused(DOORS[name], tmp_path, version)


@pytest.mark.parametrize("name", DOORS)
def test_a_file_that_says_no_version_is_of_the_first_or_refused(name: str, tmp_path: Path) -> None:
    if kinds()[name].unmarked is not None:
        assert kinds()[name].unmarked == 1
        DOORS[name](tmp_path, NONE)
    elif name == "RECORDING":  # its sidecar is none without
        with pytest.raises(InputError, match=KEY):
            DOORS[name](tmp_path, NONE)
    else:
        assert "got None" in refused(DOORS[name], tmp_path, NONE)


def test_versions_that_are_written_twice_are_one() -> None:
    assert formats.PLAN.version == plan_file.SCHEMA_VERSION
    plugin = (
        files("kplan.live").joinpath("steplog_plugin.py").read_text(encoding="utf-8")
    )  # needs vLLM to import
    assert re.findall(r"^SCHEMA_VERSION = (\d+)$", plugin, re.MULTILINE) == [str(formats.STEP_LOG.version)]


def with_versions(path: Path, record: dict[str, Any], **changes: str) -> Path:
    """A file of ``record`` made with this kplan's versions but for ``changes``."""
    path.write_text(json.dumps({**record, "versions": versions() | changes}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"python": ".".join([*versions()["python"].split(".")[:2], "99"])}, ""),
        ({"numpy": "2.2.0"}, f"numpy 2.2.0 (here {versions()['numpy']}): the same question gives the same"),
        ({"kplan": "0.0.9"}, f"kplan 0.0.9 (here {versions()['kplan']}): the same question may give other"),
    ],
)
def test_a_result_of_other_versions_is_told_in_a_line_and_read(
    changes: dict[str, str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = with_versions(tmp_path / "plan.json", make_plan().model_dump(mode="json"), **changes)
    board = with_versions(tmp_path / "leaderboard.json", BOARD, **changes)
    for path in (plan, board):
        assert run(["report", str(path), "--out", str(tmp_path / "page.html"), "--json"]) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["files"] == [str(tmp_path / "page.html")]
        assert json.loads(said.out)["versions"] == versions()
        lines = said.err.splitlines()
        assert len(lines) == (1 if told else 0)
        assert all(f"note: {path.name} was made with {told}" in line for line in lines)


def test_a_baseline_of_other_versions_is_told_and_still_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplan.validate.run.validate", lambda *_, **__: ())
    baseline = with_versions(tmp_path / "b.json", {"tables": {}}, numba="0.61.2")
    assert run(["validate", "pr32374-off", "--baseline", str(baseline), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["regressions"] == []
    told = f"note: the baseline was made with numba 0.61.2 (here {versions()['numba']}): "
    assert said.err == told + "the same question gives the same figures here but for rounding, 1e-8 of them\n"


def test_a_study_of_other_versions_says_which() -> None:
    study = optuna.create_study(study_name="s")
    check_identity(study, {"versions": {"numpy": "2.2.0", "numba": "0.61.2"}})
    with pytest.raises(InputError, match=r"its versions \(numpy 2\.2\.0, here 2\.4\.6\) differ"):
        check_identity(study, {"versions": {"numpy": "2.4.6", "numba": "0.61.2"}})
