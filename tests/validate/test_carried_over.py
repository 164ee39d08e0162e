"""Published tables against the reference figures that they were carried over from."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest
import yaml

from kplan.validate.table import PublishedTable

pytestmark = pytest.mark.shared


def table(name: str) -> PublishedTable:
    text = (files("kplan_profiles") / "published" / f"{name}.yaml").read_text()
    return PublishedTable.model_validate(yaml.safe_load(text))


def figures(name: str, *at: str) -> Counter[tuple[object, ...]]:
    given = [(row.at, row.measured) for row in table(name).rows]
    return Counter((*(places[key] for key in at), measured) for places, measured in given)


def rows(frame: pd.DataFrame, *columns: str) -> Counter[tuple[object, ...]]:
    return Counter(frame[list(columns)].itertuples(index=False, name=None))


@pytest.fixture(scope="module")
def folder(shared_dir: Path) -> Path:
    return shared_dir / "validation"


@pytest.mark.parametrize(("name", "model"), [("qwen3-8b", "Qwen3-8B"), ("llama-3-70b", "Llama3-70B")])
def test_trees(folder: Path, name: str, model: str) -> None:
    """24 speedups; each tree's rate is accepted / proposed, which tells how many it proposes."""
    frame = pd.read_csv(folder / "illusion_fig2_tree_vs_chain.csv", comment="#")
    frame = frame[frame["model"] == model]
    assert figures(f"illusion-fig2-{name}", "batch") == rows(frame, "batch_size", "speedup")
    lengths = pd.read_csv(folder / "illusion_tree_accept_len.csv", comment="#")
    lengths = lengths[lengths["model"] == model]
    for places in (row.at for row in table(f"illusion-fig2-{name}").rows):
        emitted, k = float(places["emitted"]), float(places["k"])
        rate = lengths[lengths["accepted_length"] == emitted]["accept_rate"].item()
        assert (emitted - 1) / k == pytest.approx(rate, abs=0.003)
        assert abs((emitted - 1) / (k + 1) - rate) > abs((emitted - 1) / k - rate)


@pytest.mark.parametrize("model", ["Llama3.1-8B", "Llama3-70B", "Qwen3-8B"])
def test_shares(folder: Path, model: str) -> None:
    frame = pd.read_csv(folder / "illusion_fig4_time_breakdown.csv", comment="#")
    frame = frame[frame["model"] == model]
    names = {"Llama3.1-8B": "llama-3.1-8b", "Llama3-70B": "llama-3-70b", "Qwen3-8B": "qwen3-8b"}
    found = [row for part in ("", "-sampling") for row in table(f"illusion-fig4{part}-{names[model]}").rows]
    total = sum(row.measured for row in found)
    columns = ["drafting_pct", "verification_pct", "sampling_pct", "overhead_pct"]
    plain = frame["method"] == "baseline"
    expected = frame[columns].to_numpy().sum() - frame.loc[plain, "drafting_pct"].sum()
    assert total == pytest.approx(expected / 100, abs=1e-9)
    assert len(found) == 4 * len(frame) - int(plain.sum())


@pytest.mark.parametrize("number", [3, 5])
def test_eagle3_paper(folder: Path, number: int) -> None:
    frame = pd.read_csv(folder / "eagle3_paper_batch_tables.csv", comment="#")
    frame = frame[frame["table"] == f"T{number}"].melt(["batch_size"], ["eagle", "eagle3"])
    found = figures(f"eagle3-paper-table{number}", "batch", "proposer")
    assert found == rows(frame, "batch_size", "variable", "value")


def test_step_times(folder: Path) -> None:
    frame = pd.read_csv(folder / "vllm_dsd_profile_UNVERIFIED.csv", comment="#")
    assert figures("vllm-dsd-profile", "batch", "k") == rows(frame, "batch", "K", "itl_ms")
    assert not any(row.counts for row in table("vllm-dsd-profile").rows)


@pytest.mark.parametrize(
    ("name", "target"), [("llama-3.1-8b", "Llama3.1-8B"), ("llama-2-7b-32k", "Llama2-7B-32K")]
)
def test_self_speculation(folder: Path, name: str, target: str) -> None:
    frame = pd.read_csv(folder / "magicdec_tables.csv", comment="#")
    frame = frame[(frame["hardware"] == "8xA100") & (frame["target"] == target)]
    frame = frame[frame["draft"] == "self-spec"].astype(
        dict.fromkeys(("batch_size", "prefill_tokens", "speedup"), float)
    )
    columns = ("prefill_tokens", "batch_size", "optimal_spec_len", "speedup")
    assert figures(f"magicdec-{name}", "context", "batch", "k") == rows(frame, *columns)


@pytest.mark.parametrize(("name", "column"), [("expected", "expected_x"), ("empirical", "empirical_x")])
def test_leviathan(folder: Path, name: str, column: str) -> None:
    frame = pd.read_csv(folder / "leviathan2023_table2_table4.csv", comment="#")
    found = figures(f"leviathan-{name}", "task", "draft", "temperature", "gamma", "alpha", "c")
    assert found == rows(frame, "task", "draft", "temperature", "gamma", "alpha", "c", column)


def test_simulated_figures(folder: Path) -> None:
    frame = pd.read_csv(folder / "illusion_fig10_fixed_vs_oracle_SIMULATED.csv", comment="#")
    frame = frame[frame["dataset"] != "CNN/DailyMail"]
    named = frame.assign(
        dataset=frame["dataset"].str.lower(),
        proposer=frame["proposer"].map({"EAGLE": "eagle3", "n-gram": "ngram"}),
        k=[policy if policy == "oracle" else float(policy[2:]) for policy in frame["policy"]],
    )
    columns = ("dataset", "proposer", "k", "batch_size", "speedup")
    assert figures("illusion-fig10-simulated", "dataset", "proposer", "k", "batch") == rows(named, *columns)
