"""The example trace and its prompts: ours, varied, and replayed to what the server did at every step."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kplan.acceptance import TraceSet, load_traces, walk
from kplan.acceptance.replay import NgramRule, Requests, replay_requests
from kplan.acceptance.suffix import SuffixRule
from kplan.config.shipped import shipped_traces
from kplan.export.engines import LOOKUP_WINDOW
from tests.acceptance.agreement import Served, agreement
from tests.conftest import REPOSITORY

PROFILES = REPOSITORY / "profiles" / "kplan_profiles"
KINDS = ("explain", "edit", "summarise", "write", "chat")
SERVED_K = 7
WORDS = 5  # of an n-gram that two prompts may share
MOST_SHARED = 0.1
README = (PROFILES / "traces" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def prompts() -> list[dict[str, object]]:
    text = (PROFILES / "prompts" / "example.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pq.read_table(shipped_traces()["example"])


@pytest.fixture(scope="module")
def traces() -> TraceSet:
    return load_traces(shipped_traces()["example"])


def _served(table: pa.Table) -> list[Served]:
    names = ("prompt_token_ids", "generated_token_ids", "served_accepted", "served_drafted", "served_chunks")
    return [Served(*values) for values in zip(*(table[name].to_pylist() for name in names), strict=True)]


def test_prompts_are_of_five_kinds_and_each_has_what_a_request_needs(
    prompts: list[dict[str, object]],
) -> None:
    assert Counter(prompt["kind"] for prompt in prompts) == dict.fromkeys(KINDS, 52)
    assert len({prompt["id"] for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert set(prompt) == {"id", "kind", "messages", "max_tokens"}
        assert isinstance(prompt["messages"], list)
        assert prompt["messages"][-1]["role"] == "user"


def test_no_two_prompts_are_alike(prompts: list[dict[str, object]]) -> None:
    """Of the shorter of any two, at most a tenth of the runs of five words stands in the other."""
    grams = {str(prompt["id"]): _grams(json.dumps(prompt["messages"])) for prompt in prompts}
    for (one, a), (other, b) in combinations(grams.items(), 2):
        assert len(a & b) <= MOST_SHARED * min(len(a), len(b)), f"{one} and {other} share {a & b}"


def _grams(messages: str) -> set[tuple[str, ...]]:
    said = " ".join(message["content"] for message in json.loads(messages))
    words = re.findall(r"\w+", said.lower())
    return {tuple(words[i : i + WORDS]) for i in range(len(words) - WORDS + 1)}


def test_the_trace_answers_every_prompt_in_order(
    prompts: list[dict[str, object]], table: pa.Table, traces: TraceSet
) -> None:
    assert traces.request_id.tolist() == [prompt["id"] for prompt in prompts]
    assert table["dataset"].to_pylist() == [prompt["kind"] for prompt in prompts]
    assert 40 <= traces.prompt_len.min() <= traces.prompt_len.max() <= 400
    longest = np.array([prompt["max_tokens"] for prompt in prompts])
    assert (traces.proposers["ngram"].output_len <= longest).all()


def test_the_replay_does_what_the_server_did_at_every_step(table: pa.Table) -> None:
    found = agreement(_served(table), NgramRule(SERVED_K, *LOOKUP_WINDOW))
    assert found.different == ()
    assert found.steps == sum(len(chunks) - 1 for chunks in table["served_chunks"].to_pylist())
    assert found.with_draft == sum(map(len, table["served_drafted"].to_pylist()))
    assert (found.merged, found.cut) == (0, 119)


def test_a_replay_by_another_rule_differs_from_the_server(table: pa.Table) -> None:
    for other in (NgramRule(SERVED_K, 2, 5), NgramRule(SERVED_K - 1, *LOOKUP_WINDOW)):
        assert len(agreement(_served(table), other).different) > len(table) / 4


@pytest.mark.parametrize("rule", [NgramRule(20, *LOOKUP_WINDOW), SuffixRule()])
def test_both_lookups_are_replays_of_the_token_ids(
    rule: NgramRule | SuffixRule, table: pa.Table, traces: TraceSet
) -> None:
    served = _served(table)
    log = Requests(
        request_id=tuple(traces.request_id.tolist()),
        prompts=tuple(np.array(one.prompt, np.int32) for one in served),
        outputs=tuple(np.array(one.output, np.int32) for one in served),
        source="example",
    )
    ((name, again),) = replay_requests(log, rule).proposers.items()
    kept = traces.proposers[name]
    assert (kept.recorded_k, kept.drafted is None) == (rule.k, False)
    np.testing.assert_array_equal(kept.acc, again.acc)
    np.testing.assert_array_equal(kept.drafted, again.drafted)


def test_a_walk_emits_what_the_server_emitted_and_drafts_what_it_drafted(
    table: pa.Table, traces: TraceSet
) -> None:
    """Counted from the server's own lists, which the trace does not hold."""
    stats = walk(traces.proposers["ngram"], SERVED_K)
    chunks = table["served_chunks"].to_pylist()
    assert stats.tokens == sum(map(sum, chunks)) - len(chunks)
    assert stats.steps == sum(map(len, chunks)) - len(chunks)
    assert stats.drafted == sum(map(sum, table["served_drafted"].to_pylist()))


@pytest.mark.parametrize(
    ("kind", "tokens_per_step"),
    [("edit", 2.181), ("write", 1.913), ("summarise", 1.574), ("chat", 1.533), ("explain", 1.217)],
)
def test_each_kind_is_foretold_as_well_as_was_measured(kind: str, tokens_per_step: float) -> None:
    """From the sizes of the chunks that were streamed, as traces/README.md has them: what copies its prompt
    (an edit) or itself (a poem) is foretold best, an explanation of what the prompt does not say least."""
    trace = load_traces(Path("example"), kind).proposers["ngram"]
    assert walk(trace, SERVED_K).acceptance_length == pytest.approx(tokens_per_step, abs=0.0006)
    row = next(line for line in README.splitlines() if line.startswith(f"| {kind} |"))
    assert row.split(" | ")[5] == f"{tokens_per_step:.3f}"
