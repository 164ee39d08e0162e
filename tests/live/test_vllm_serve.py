"""A server started from an exported config: same text, drafts by the table, accepts what it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import pytest

from kplan.export import export_vllm
from tests.live.install import Engine
from tests.live.plans import drafter, plan, target
from tests.live.server import Server, group_members, serve
from tests.live.walk import Pair, Walk, geometric_mean_accepted, walk

pytestmark = pytest.mark.served

TABLE = ((1, 2, 4), (3, None, 2))
CALM_K, BUSY_K = 4, 2
REQUESTS, OUTPUT_TOKENS = 16, 256  # together one round of the pair's cycle: every token is the last one once
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True)
class Run:
    """What one server answered, and what its counters grew by."""

    outputs: list[tuple[int, ...]]
    calm: Counter[str]
    busy: Counter[str]
    group: int
    clean_stop: bool | None


def _prompts(pair: Pair) -> list[list[int]]:
    """Prompts whose last tokens are spread evenly over the cycle; what stands before them changes nothing."""
    stride = len(pair.cycle) // REQUESTS
    return [[*pair.cycle[:7], pair.cycle[i * stride]] for i in range(REQUESTS)]


def _run(server: Server, pair: Pair) -> tuple[list[tuple[int, ...]], Counter[str], Counter[str]]:
    prompts = _prompts(pair)
    server.generate(prompts[:1], 8, at_a_time=1)  # the first request is slow and counted apart
    before = server.counters()
    outputs = server.generate(prompts, OUTPUT_TOKENS, at_a_time=1)
    between = server.counters()
    busy = server.generate(prompts * 2, OUTPUT_TOKENS, at_a_time=8)
    assert busy == outputs * 2
    after = server.counters()
    return outputs, between - before, after - between


def _serve(vllm: Engine, pair: Pair, folder: Path, k: int | None) -> Run:
    asked = plan(k=k) if k is not None else plan(ranges=TABLE)
    draft = drafter("draft-model", pair.folder / "draft")
    export = export_vllm(asked, target(pair.folder / "target"), draft)
    config = folder / "vllm.yaml"
    config.write_text(export.files["vllm.yaml"])
    with serve(vllm, config) as server:
        outputs, calm, busy = _run(server, pair)
    return Run(outputs, calm, busy, server.group, server.clean_stop)


@pytest.fixture(scope="module")
def plain(vllm: Engine, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without speculation."""
    return _serve(vllm, pair, tmp_path_factory.mktemp("plain"), k=0)


@pytest.fixture(scope="module")
def table(vllm: Engine, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """With the batch table."""
    return _serve(vllm, pair, tmp_path_factory.mktemp("table"), k=None)


def _expected(pair: Pair, k: int) -> Iterator[Walk]:
    return (walk(pair, prompt[-1], OUTPUT_TOKENS, k) for prompt in _prompts(pair))


def test_plain_server_walks_the_cycle_and_drafts_nothing(pair: Pair, plain: Run) -> None:
    assert plain.outputs == [w.tokens for w in _expected(pair, 0)]
    assert plain.calm[DRAFTED] == 0


def test_text_is_the_text_without_speculation(plain: Run, table: Run) -> None:
    assert table.outputs == plain.outputs


def test_one_request_at_a_time_drafts_the_first_k_of_the_table(table: Run) -> None:
    assert table.calm[DRAFTED] == CALM_K * table.calm[DRAFTS]


def test_accepted_tokens_are_those_of_the_pair(pair: Pair, table: Run) -> None:
    expected = list(_expected(pair, CALM_K))
    drafts, accepted = sum(w.drafts for w in expected), sum(w.accepted for w in expected)
    assert table.calm[DRAFTS] == pytest.approx(drafts, rel=0.02)
    assert table.calm[ACCEPTED] / table.calm[DRAFTS] == pytest.approx(accepted / drafts, rel=0.02)


def test_acceptance_agrees_with_the_geometric_law(pair: Pair, table: Run) -> None:
    """The draft is wrong on tokens chosen at random, so the cycle's mean is the law's within its error."""
    law = geometric_mean_accepted(pair.alpha, CALM_K)
    second_moment = sum((2 * i - 1) * pair.alpha**i for i in range(1, CALM_K + 1))
    stderr = sqrt((second_moment - law**2) / table.calm[DRAFTS])
    assert table.calm[ACCEPTED] / table.calm[DRAFTS] == pytest.approx(law, abs=3 * stderr)


def _accepted_per_draft(pair: Pair, k: int) -> float:
    expected = list(_expected(pair, k))
    return sum(w.accepted for w in expected) / sum(w.drafts for w in expected)


def test_more_requests_draft_the_second_k_of_the_table(pair: Pair, table: Run) -> None:
    """Eight in flight; the first and the last steps of the run see a batch below three and draft the first K.

    How many those are depends on the machine's speed; the drafted tokens count them, so the accepted ones
    follow without a guess.
    """
    calm_share = (table.busy[DRAFTED] / table.busy[DRAFTS] - BUSY_K) / (CALM_K - BUSY_K)
    assert 0 <= calm_share < 0.25
    expected = (1 - calm_share) * _accepted_per_draft(pair, BUSY_K) + calm_share * _accepted_per_draft(
        pair, CALM_K
    )
    assert table.busy[ACCEPTED] / table.busy[DRAFTS] == pytest.approx(expected, rel=0.02)


def test_servers_stop_when_asked_and_leave_nothing_behind(plain: Run, table: Run) -> None:
    for run in (plain, table):
        assert run.clean_stop
        assert group_members(run.group) == []
