"""The record files: what they hold, and that they are whole or not there."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from kplan.config.scenario import make_scenario
from kplan.engine import replica as replica_module
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.simulate import draw_requests, prepare, recording, records


class Files(NamedTuple):
    steps: pd.DataFrame
    requests: pd.DataFrame
    run: dict[str, Any]


def read(folder: Path) -> Files:
    return Files(
        pd.read_parquet(folder / "steps.parquet"),
        pd.read_parquet(folder / "requests.parquet"),
        json.loads((folder / "run.json").read_text()),
    )


def record(folder: Path, policy: str = "fixed:2", replicas: int = 1, **scenario: Any) -> Files:
    """The files of two replications of ``scenario``."""
    setup = prepare(make_scenario({"workload": "gsm8k", "replications": 2, **scenario}))
    drawn = [draw_requests(setup, setup.scenario.requests or 100, seed) for seed in (0, 1)]
    with recording(folder) as recorder:
        recorder.write(setup, parse_policy(policy), drawn, replicas, {"notes": ["a note"]})
    return read(folder)


SMALL = {"concurrency": 4, "requests": 40}


def test_one_client_without_drafts_is_known_by_hand(tmp_path: Path) -> None:
    """A prompt of 10 and 5 tokens is one prefill and 4 decodes over contexts of 11 to 14; nobody waits."""
    steps, requests, run = record(
        tmp_path, "off", concurrency=1, requests=8, prompt_tokens=10, output_tokens=5
    )
    assert len(steps) == 2 * 8 * 5
    one = steps[steps["replication"] == 1]
    assert one["step"].tolist() == list(range(40))
    assert one["query_tokens"].tolist() == [10, 1, 1, 1, 1] * 8
    assert one["decodes"].tolist() == [0, 1, 1, 1, 1] * 8
    assert one["context"].tolist() == [0, 11, 12, 13, 14] * 8
    assert one["emitted"].tolist() == [1] * 40
    assert one["decode_emitted"].tolist() == [0, 1, 1, 1, 1] * 8
    assert one["finished"].tolist() == [0, 0, 0, 0, 1] * 8
    assert (one[["waiting", "proposed", "accepted", "k", "preemptions"]] == 0).all(axis=None)
    assert (one[["batch", "running", "used_blocks"]] == 1).all(axis=None)
    np.testing.assert_array_equal(one["start_s"][1:], one["end_s"][:-1])
    mine = requests[requests["replication"] == 1]
    assert mine["request"].tolist() == list(range(8))
    prefill_s, *decodes_s = one["end_s"][:5]
    assert mine["ttft_s"].iloc[0] == prefill_s
    assert mine["tpot_s"].iloc[0] == pytest.approx((decodes_s[-1] - prefill_s) / 4)
    np.testing.assert_array_equal(mine["arrival_s"][1:], mine["finish_s"][:-1])
    assert mine["steps"].tolist() == [4] * 8
    assert run["replications"][1]["replicas"] == [
        {
            "replica": 0,
            "requests": 8,
            "steps": 40,
            "measured": {
                "first_admitted": 0,
                "last_admitted": 7,
                "open_s": 0.0,
                "close_s": one["end_s"].iloc[-1],
            },
        }
    ]


@pytest.mark.parametrize(
    ("policy", "replicas", "scenario"),
    [
        ("fixed:3", 1, {"concurrency": 64, "requests": 300, "gpu_memory_utilization": 0.23}),  # preempts
        ("goodput", 2, {"qps": 60.0, "requests": 400, "router": "least-outstanding"}),
        ("sglang-ema", 2, {"qps": 60.0, "requests": 400, "engine": "sglang"}),
        ("fixed:1", 1, {"qps": 60.0, "requests": 400, "dp": 2}),
    ],
)
def test_steps_and_requests_count_the_same_things(
    policy: str, replicas: int, scenario: dict[str, Any], tmp_path: Path
) -> None:
    steps, requests, _ = record(tmp_path, policy, replicas, **scenario)
    where = ["replication", "replica"]
    by_step, by_request = steps.groupby(where), requests.groupby(where)
    assert len(by_step) == len(by_request) == 2 * replicas * scenario.get("dp", 1)
    for of_steps, of_requests in (
        ("emitted", "output_len"),
        ("decodes", "steps"),
        ("proposed", "proposed"),
        ("accepted", "accepted"),
    ):
        assert by_step[of_steps].sum().tolist() == by_request[of_requests].sum().tolist(), of_steps
    assert by_step["finished"].sum().tolist() == by_request.size().tolist()
    assert by_step["preemptions"].max().tolist() == by_request["preempted"].sum().tolist()
    for _, one in by_step:
        assert one["step"].tolist() == list(range(len(one)))
        assert (one["start_s"].to_numpy()[1:] >= one["end_s"].to_numpy()[:-1] * (1 - 1e-15)).all()
    moments = requests[["arrival_s", "admitted_s", "first_token_s", "finish_s"]].to_numpy()
    assert (np.diff(moments, axis=1) >= 0).all()
    if "gpu_memory_utilization" in scenario:
        assert requests["preempted"].sum() > 0


def test_many_chunks_number_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = record(tmp_path / "whole", **SMALL)
    monkeypatch.setattr(replica_module, "LOG_STEPS", 64)
    monkeypatch.setattr(records, "ROWS", 7)
    parts = record(tmp_path / "parts", **SMALL)
    pd.testing.assert_frame_equal(parts.steps, whole.steps)
    pd.testing.assert_frame_equal(parts.requests, whole.requests)
    assert pq.ParquetFile(tmp_path / "parts/requests.parquet").num_row_groups == 2 * 6


def test_a_request_of_one_token_has_no_tpot(tmp_path: Path) -> None:
    files = record(tmp_path, **SMALL, output_tokens=1)
    column = pq.read_table(tmp_path / "requests.parquet")["tpot_s"]
    assert column.null_count == len(files.requests) == 80


def test_the_files_say_what_they_hold_and_where_it_is_from(tmp_path: Path) -> None:
    _, _, run = record(tmp_path, **SMALL, seed=5)
    assert run["scenario"]["requests"] == 40
    assert run["scenario"]["policy"] == run["policy"] == "fixed:2"
    assert run["notes"] == ["a note"]
    assert [one["seed"] for one in run["replications"]] == [5, 6]
    for name in ("steps", "requests"):
        schema = pq.read_schema(tmp_path / f"{name}.parquet")
        meta = json.loads(schema.metadata[b"kplan.records"])
        assert meta["schema_version"] == run["schema_version"] == 1
        assert meta["table"] == name
        assert meta["kind"] == "simulated"
        assert meta["scenario_hash"] == run["scenario_hash"]
        assert meta["versions"] == run["versions"]
        assert list(meta["columns"]) == schema.names
        seconds = {key for key, column in meta["columns"].items() if column["unit"] == "s"}
        assert seconds == {key for key in schema.names if key.endswith("_s")}


def test_another_scenario_has_another_hash(tmp_path: Path) -> None:
    one = record(tmp_path, **SMALL).run["scenario_hash"]
    assert record(tmp_path, **SMALL).run["scenario_hash"] == one
    assert record(tmp_path, "fixed:1", **SMALL).run["scenario_hash"] != one


@contextmanager
def full_disk(bytes_left: int) -> Iterator[None]:
    """No file grows beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    record(kept, **SMALL)
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    assert set(before) == {"steps.parquet", "requests.parquet", "run.json"}
    for folder in (kept, tmp_path / "new/deep"):
        with full_disk(4096), pytest.raises(InputError, match="cannot be written") as caught:
            record(folder, **SMALL)
        assert str(folder) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_what_was_there(
    stop: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "kept", **SMALL)
    before = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    real = records.run_fleet

    def stopped(*args: Any, **kwargs: Any) -> None:
        real(*args, **kwargs)
        raise stop

    monkeypatch.setattr(records, "run_fleet", stopped)
    for folder in (tmp_path / "kept", tmp_path / "new"):
        with pytest.raises(stop):
            record(folder, **SMALL)
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_a_log_that_is_replayed_is_not_written_over(tmp_path: Path) -> None:
    log = tmp_path / "requests.parquet"
    log.write_text("mine")
    other = tmp_path / "steps.csv"
    with pytest.raises(InputError, match="is read by the same command"), recording(tmp_path, [other, log]):
        pytest.fail("it went on")
    assert [path.name for path in tmp_path.iterdir()] == ["requests.parquet"]
    assert log.read_text() == "mine"


def test_folders_that_cannot_be_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken/run.json").mkdir(parents=True)
    for folder, told in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file/below", "Not a directory"),
        (tmp_path / "taken", "is a folder"),
        (tmp_path / ("x" * 300), "File name too long"),
        (Path("/proc/kplan"), "No such file or directory"),
    ):
        with pytest.raises(InputError, match=told) as caught, recording(folder):
            pytest.fail("it went on")
        assert len(str(caught.value).splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "run.json", "taken"]
