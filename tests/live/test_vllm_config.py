"""The exported vllm.yaml passes vLLM's own parser, config and table code, and means what the plan says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from kplan.export import export_vllm
from tests.live.install import Engine
from tests.live.plans import drafter, plan, target
from tests.live.verdicts import judge
from tests.live.walk import Pair

Ranges = tuple[tuple[int, int | None, int], ...]


@dataclass(frozen=True)
class Case:
    """A plan to export: a batch table or one K, for a proposer."""

    proposer: str
    ranges: Ranges = ()
    k: int | None = None
    max_num_seqs: int = 32
    plain_launch: bool = False
    dp: int = 1
    max_model_len: int | None = None
    prefix_caching: bool = True
    kv_tokens: int | None = None

    def k_at(self, batch: int) -> int:
        """K that the plan means at this batch size."""
        if not self.ranges:
            assert self.k is not None
            return self.k
        (k,) = (k for start, end, k in self.ranges if start <= batch and (end is None or batch <= end))
        return k


def _random_ranges(seed: int) -> Ranges:
    rng = Random(seed)
    bounds = sorted(rng.sample(range(2, 33), rng.randint(1, 5)))
    starts, ends = [1, *bounds], [*(b - 1 for b in bounds), None]
    ks = [rng.randint(0, 7) for _ in starts]
    ks[rng.randrange(len(ks))] = rng.randint(1, 7)  # a table of zeros is no speculation, tried apart
    return tuple(zip(starts, ends, ks, strict=True))


CASES = {
    "off": Case("draft-model", k=0),
    "all-zero table": Case("draft-model", ranges=((1, 4, 0), (5, None, 0))),
    "fixed draft model": Case("draft-model", k=3),
    "fixed n-gram": Case("ngram", k=5),
    "fixed eagle3": Case("eagle3", k=2),
    "synchronous and eager": Case("draft-model", k=2, plain_launch=True),
    "two ranks": Case("draft-model", k=3, dp=2),
    "off on two ranks": Case("draft-model", k=0, dp=2),
    "short context": Case("draft-model", k=2, max_model_len=512),
    "no prefix cache": Case("draft-model", k=2, prefix_caching=False),
    "context above the KV cache": Case("draft-model", k=2, kv_tokens=1000),
    "n-gram table": Case("ngram", ranges=((1, 4, 4), (5, 16, 2), (17, None, 0))),
    "eagle3 table": Case("eagle3", ranges=((1, 8, 3), (9, None, 1))),
    "table past max_num_seqs": Case(
        "draft-model", ranges=((1, 4, 4), (5, 64, 2), (65, None, 1)), max_num_seqs=16
    ),
    "rising table": Case("draft-model", ranges=((1, 8, 1), (9, None, 4))),
    **{f"random table {seed}": Case("draft-model", ranges=_random_ranges(seed)) for seed in range(8)},
}


def _export(case: Case, pair: Pair) -> str:
    asked = plan(
        ranges=case.ranges,
        k=case.k,
        max_num_seqs=case.max_num_seqs,
        async_scheduling=False if case.plain_launch else None,
        enforce_eager=case.plain_launch,
        dp=case.dp,
        max_model_len=case.max_model_len,
        prefix_caching=case.prefix_caching,
        kv_tokens=case.kv_tokens,
    )
    draft = drafter(case.proposer, pair.folder / "draft")
    return export_vllm(asked, target(pair.folder / "target"), draft).files["vllm.yaml"]


# What a user could have written by hand, and the stage at which vLLM refuses it.
def _spoil(content: dict[str, Any], how: str) -> dict[str, Any]:
    speculative = dict(content["speculative-config"])
    if how == "unknown flag":
        return content | {"not-a-flag": 1}
    if how == "table on two ranks":
        return content | {"data-parallel-size": 2}
    if how == "static K of 0":
        return content | {"speculative-config": speculative | {"num_speculative_tokens": 0}}
    key = "num_speculative_tokens_per_batch_size"
    table = {"overlap": [[1, 4, 4], [4, 8, 2]], "first start not 1": [[2, 4, 4]]}[how]
    return content | {"speculative-config": speculative | {key: table}}


REFUSED = {
    "unknown flag": "parser",
    "static K of 0": "config",
    "overlap": "start",
    "first start not 1": "start",
}


@pytest.fixture(scope="module")
def verdicts(vllm: Engine, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """vLLM's word on every case; one process, for its imports take longer than all cases."""
    folder = tmp_path_factory.mktemp("yaml")
    texts = {name: _export(case, pair) for name, case in CASES.items()}
    good = yaml.safe_load(texts["n-gram table"])
    texts |= {how: yaml.safe_dump(_spoil(good, how)) for how in (*REFUSED, "table on two ranks")}
    files: dict[str, Path] = {}
    for number, (name, text) in enumerate(texts.items()):
        files[name] = folder / f"{number}.yaml"
        files[name].write_text(text)
    return judge(vllm, files)


@pytest.mark.parametrize("name", CASES)
def test_vllm_runs_the_k_of_the_plan_at_every_batch_size(
    name: str, verdicts: dict[str, dict[str, Any]]
) -> None:
    case, verdict = CASES[name], verdicts[name]
    assert verdict["stage"] == "ok", verdict["error"]
    assert verdict["max_num_seqs"] == case.max_num_seqs
    table = verdict["k_by_batch"] or [verdict["k"]] * (case.max_num_seqs + 1)
    batches = range(1, case.max_num_seqs + 1)
    assert [table[batch] for batch in batches] == [case.k_at(batch) for batch in batches]


@pytest.mark.parametrize("name", CASES)
def test_vllm_serves_as_the_plan_says(name: str, verdicts: dict[str, dict[str, Any]]) -> None:
    case, verdict = CASES[name], verdicts[name]
    assert verdict["data_parallel_size"] == case.dp
    assert verdict["prefix_caching"] == case.prefix_caching
    assert verdict["max_model_len"] == (case.max_model_len or verdicts["off"]["max_model_len"])
    assert verdict["fits_max_model_len"] == (case.kv_tokens is not None)


def test_ranks_make_vllm_drop_a_table(verdicts: dict[str, dict[str, Any]]) -> None:
    """Why such a table is refused, and simulated as its largest K."""
    verdict = verdicts["table on two ranks"]
    assert (verdict["stage"], verdict["data_parallel_size"]) == ("ok", 2)
    assert verdict["k_by_batch"] is None
    assert verdict["k"] == 4


@pytest.mark.parametrize("how", REFUSED)
def test_the_check_bites(how: str, verdicts: dict[str, dict[str, Any]]) -> None:
    assert verdicts[how]["stage"] == REFUSED[how]
