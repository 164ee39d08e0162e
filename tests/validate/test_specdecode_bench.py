"""SpecDecode-Bench's simulated figures from its own recordings, and its way of counting on a made request."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest

from kplan.latency import StepShape
from kplan.latency.linear import LinearModel
from kplan.profiles import DrafterKind
from kplan.validate.predict.specdecode_bench import MATCHES, Requests, load_row, speedup

FIGURE = {"gsm8k": "GSM8K", "instructcoder": "InstructCoder", "sharegpt": "ShareGPT"}
SEED, SAMPLE = 42, 300  # of the published runs


def published(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, comment="#")


def recorded(shared: Path, dataset: str) -> pd.DataFrame:
    """The requests that the published runs sampled, in their order."""
    columns = ["dataset", "prompt_len", "acc_ngram", "acc_eagle"]
    frame = pd.read_parquet(shared / "data" / "acceptance_traces.parquet", columns=columns)
    frame = frame[frame["dataset"] == dataset]
    return frame.iloc[Random(SEED).sample(range(len(frame)), SAMPLE)]


def requests(frame: pd.DataFrame, column: str, matches: float | None = None) -> Requests:
    acc = [np.asarray(each, dtype=np.int64) for each in frame[column]]
    return Requests(frame["prompt_len"].tolist(), acc, matches)


@pytest.mark.shared
@pytest.mark.parametrize("dataset", FIGURE)
def test_every_simulated_figure_is_reproduced(shared_dir: Path, dataset: str) -> None:
    """Fig. 10: n-gram and EAGLE at K = 1, 3, 5 and the oracle, six batches; printed to 0.01."""
    figure = published(shared_dir / "validation" / "illusion_fig10_fixed_vs_oracle_SIMULATED.csv")
    figure = figure[figure["dataset"] == FIGURE[dataset]]
    assert len(figure) == 48
    frame = recorded(shared_dir, dataset)
    heads, lookups = requests(frame, "acc_eagle"), requests(frame, "acc_ngram", MATCHES[dataset])
    for (proposer, policy), rows in figure.groupby(["proposer", "policy"]):
        lookup = proposer == "n-gram"
        k = None if policy == "oracle" else int(policy.removeprefix("k="))
        stepped = (lookups if lookup else heads).stepped(k)
        for row in rows.itertuples():
            found = speedup(stepped, row.batch_size, lookup_cost=lookup)
            assert found == pytest.approx(row.speedup, abs=0.006), (proposer, policy, row.batch_size)


@pytest.mark.shared
@pytest.mark.parametrize("dataset", FIGURE)
def test_the_combined_oracle_is_reproduced(shared_dir: Path, dataset: str) -> None:
    """Fig. 12: the better of both proposers at every step, at the price of a lookup."""
    figure = published(shared_dir / "validation" / "illusion_fig12_oracle_combine_SIMULATED.csv")
    figure = figure[(figure["dataset"] == FIGURE[dataset]) & (figure["policy"] == "combine oracle")]
    assert len(figure) == 6
    frame = recorded(shared_dir, dataset)
    pairs = zip(frame["acc_ngram"], frame["acc_eagle"], strict=True)
    both = [(a[: min(len(a), len(b))], b[: min(len(a), len(b))]) for a, b in pairs]
    best = [np.maximum(a, b).astype(np.int64) for a, b in both]
    stepped = Requests(frame["prompt_len"].tolist(), best).stepped(None)
    for row in figure.itertuples():
        assert speedup(stepped, row.batch_size, lookup_cost=True) == pytest.approx(row.speedup, abs=0.006)


@pytest.mark.shared
def test_much_of_the_combined_margin_is_the_price_of_a_lookup(shared_dir: Path) -> None:
    """InstructCoder at batch 1: 4.89 over EAGLE's 2.73 as published, where every draft costs a lookup's time.

    The same steps, each charged as a head's, keep little more than half of what is gained.
    """
    frame = recorded(shared_dir, "instructcoder")
    pairs = zip(frame["acc_ngram"], frame["acc_eagle"], strict=True)
    both = [(a[: min(len(a), len(b))], b[: min(len(a), len(b))]) for a, b in pairs]
    best = Requests(frame["prompt_len"].tolist(), [np.maximum(a, b).astype(np.int64) for a, b in both])
    eagle = speedup(requests(frame, "acc_eagle").stepped(None), 1, lookup_cost=False)
    as_lookup, as_head = (speedup(best.stepped(None), 1, lookup_cost=cheap) for cheap in (True, False))
    assert as_lookup / eagle == pytest.approx(4.89 / 2.73, abs=0.01)
    assert 0 < as_head / eagle - 1 < 0.6 * (as_lookup / eagle - 1)


@pytest.mark.shared
def test_steps_are_counted_as_published(shared_dir: Path) -> None:
    """The rerun of the published code noted its steps, one prefill a request among them."""
    for dataset, plain, fixed, oracle in (
        ("gsm8k", 49612, 21016, 18035),
        ("instructcoder", 82380, 34045, 28005),
    ):
        heads = requests(recorded(shared_dir, dataset), "acc_eagle")
        stepped = heads.stepped(3)
        assert sum(one.output for one in stepped) == plain
        assert sum(1 + len(one.at) for one in stepped) == fixed
        assert sum(1 + len(one.at) for one in heads.stepped(None)) == oracle


def test_one_request_by_hand() -> None:
    """Prompt 10, output 4, two copies, K = 1: steps at 1 and 2 tokens (acc[0] = 1, acc[1] = 3 cut to 2).

    Coefficients as published: verify 5.88590713e-3 + 2.10103129e-5 tokens + 3.92645679e-8 kv; drafting
    2.13526175e-3 + 8.41429603e-7 x 2 + 2.37768493e-9 kv; 1.20683946e-3 a step.
    """
    fixed, token, kv, over = 5.88590713e-3, 2.10103129e-5, 3.92645679e-8, 1.20683946e-3
    draft, draft_kv = 2.13526175e-3 + 2 * 8.41429603e-7, 2.37768493e-9
    prefill = fixed + 20 * token + over
    off = prefill + sum(fixed + 2 * token + kv * 2 * (10 + c) + over for c in (1, 2, 3))
    verify = sum(fixed + 4 * token + kv * 2 * (10 + c) + over + draft for c in (1, 2))
    # the second copy drafts after the first has emitted 1 token, and, in the last step, after it has gone
    drafting = draft_kv * ((22 + 23) / 2 + (24 + 12) / 2)
    stepped = Requests([10], [np.array([1, 3, 1, 1])]).stepped(1)
    assert speedup(stepped, 2, lookup_cost=False) == pytest.approx(off / (prefill + verify + drafting))


def test_linear_model_prices_a_grid_like_the_roofline() -> None:
    row = load_row()
    shape = StepShape.decode(np.array([[1], [8]]), np.array([[0, 3, 7]]), 500)
    step = LinearModel(row, DrafterKind.HEAD).step_seconds(shape)
    assert step.total_s.shape == (2, 3)
    # batch 8, K = 3: 32 tokens, 4000 KV tokens
    assert step.verify_s[1, 1] == pytest.approx(5.88590713e-3 + 32 * 2.10103129e-5 + 4000 * 3.92645679e-8)
    assert step.draft_s[1, 1] == pytest.approx(2.13526175e-3 + 4 * 8.41429603e-7 + 4000 * 2.37768493e-9)
    lookup = LinearModel(row, DrafterKind.LOOKUP).step_seconds(shape)
    np.testing.assert_allclose(lookup.draft_s, 0.005875 * lookup.verify_s)
    assert not LinearModel(row).step_seconds(shape).draft_s.any()
