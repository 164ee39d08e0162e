"""The logs of the reference data: their counts, what prompts share, and the same log in other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.workload import load_log

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(
    ("name", "requests", "span_s"),
    [
        ("azure2023_code", 8_819, 3_436),
        ("azure2023_conv", 19_366, 3_502),
        ("mooncake_conversation", 12_031, 3_537),
        ("mooncake_synthetic", 3_993, 1_022),
    ],
)
def test_all_rows_are_read_at_their_own_pace(shared_dir: Path, name: str, requests: int, span_s: int) -> None:
    path = shared_dir / "data" / f"arrivals_{name}.parquet"
    log = load_log(path)
    assert len(log) == requests
    assert log.t_s[0] == 0
    assert log.t_s[-1] == pytest.approx(span_s, abs=0.5)
    frame = pd.read_parquet(path)
    assert log.prompt_len.sum() == frame["input_tokens"].sum()
    assert log.output_len.sum() == frame["output_tokens"].sum()


@pytest.mark.parametrize("name", ["mooncake_conversation", "mooncake_synthetic"])
def test_mooncakes_units_give_the_hits_of_an_infinite_cache(shared_dir: Path, name: str) -> None:
    path = shared_dir / "data" / f"arrivals_{name}.parquet"
    prefix = load_log(path).prefix
    assert prefix is not None
    seen: set[int] = set()
    hits = units = 0
    for tokens, ids in pd.read_parquet(path)[["input_tokens", "hash_ids_512"]].itertuples(index=False):
        whole = list(ids[: tokens // 512])
        known = 0
        while known < len(whole) and whole[known] in seen:
            known += 1
        hits += known
        units += len(whole)
        seen.update(whole)
    assert len(prefix.ids) == units
    assert int(prefix.ids.max()) + 1 == len(seen)
    cached = np.zeros(len(seen), np.bool_)
    found = 0
    for start, end in zip(prefix.offsets[:-1], prefix.offsets[1:], strict=True):
        here = cached[prefix.ids[start:end]]
        found += len(here) if here.all() else int(np.argmin(here))
        cached[prefix.ids[start:end]] = True
    assert found == hits
    assert 0 < hits < units


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl"])
def test_the_same_log_in_another_file_is_the_same(shared_dir: Path, tmp_path: Path, kind: str) -> None:
    path = shared_dir / "data" / "arrivals_mooncake_synthetic.parquet"
    frame = pd.read_parquet(path)
    copy = tmp_path / f"log.{kind}"
    if kind == "jsonl":  # as Mooncake publishes it
        frame["timestamp"] = (frame["t_s"].astype(np.float64) * 1000).round().astype(np.int64)
        names = {"input_tokens": "input_length", "output_tokens": "output_length", "hash_ids_512": "hash_ids"}
        frame.drop(columns="t_s").rename(columns=names).to_json(copy, orient="records", lines=True)
    else:
        frame["hash_ids_512"] = [" ".join(map(str, ids)) for ids in frame["hash_ids_512"]]
        frame.to_csv(copy, index=False)
    one, two = load_log(path), load_log(copy)
    np.testing.assert_allclose(two.t_s, one.t_s, atol=1e-3)
    np.testing.assert_array_equal(two.prompt_len, one.prompt_len)
    np.testing.assert_array_equal(two.output_len, one.output_len)
    assert one.prefix is not None
    assert two.prefix is not None
    np.testing.assert_array_equal(two.prefix.ids, one.prefix.ids)
    np.testing.assert_array_equal(two.prefix.offsets, one.prefix.offsets)
    assert two.notes == one.notes


def test_azures_own_dates_read_back_as_the_same_pace(shared_dir: Path, tmp_path: Path) -> None:
    frame = pd.read_parquet(shared_dir / "data" / "arrivals_azure2023_code.parquet")
    when = pd.Timestamp("2023-11-16 18:15:46.6805900") + pd.to_timedelta(
        frame["t_s"].astype(np.float64), unit="s"
    )
    pd.DataFrame(
        {
            "TIMESTAMP": when.dt.strftime("%Y-%m-%d %H:%M:%S.%f0"),
            "ContextTokens": frame["input_tokens"],
            "GeneratedTokens": frame["output_tokens"],
        }
    ).to_csv(tmp_path / "code.csv", index=False)
    log = load_log(tmp_path / "code.csv")
    np.testing.assert_allclose(log.t_s, frame["t_s"], atol=2e-6)
    assert log.provenance.note == "read as Azure's log, TIMESTAMP in dates"
