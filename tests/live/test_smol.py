"""A real language model: what `kplan record` writes is what a replay of its token ids gives, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kplan.acceptance import TraceSet, load_acceptance
from kplan.acceptance.collect import ImportOptions
from tests.acceptance.agreement import Served, agreement
from tests.live.install import Engine
from tests.live.make_example import PROMPTS, SERVED_RULE, read_rows, record, served
from tests.live.smol import MODEL, serve_ngram

pytestmark = pytest.mark.served

REQUESTS = 10  # the first of the file: two of each kind
CONCURRENCY = 8


@pytest.fixture(scope="module")
def recorded(vllm: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smol")
    rows = folder / "recorded.jsonl"
    with serve_ngram(vllm, folder) as server:
        assert record(server.url, rows, CONCURRENCY, 300.0, "--requests", str(REQUESTS)) == 0
    return rows


@pytest.fixture(scope="module")
def requests(recorded: Path) -> Sequence[Served]:
    return served(read_rows(recorded))


def test_every_prompt_is_answered_within_its_length(requests: Sequence[Served]) -> None:
    longest = [prompt["max_tokens"] for prompt in read_rows(PROMPTS)[:REQUESTS]]
    assert len(requests) == REQUESTS
    assert all(0 < len(one.output) <= most for one, most in zip(requests, longest, strict=True))


def test_the_replay_does_what_the_server_did_at_every_step(requests: Sequence[Served]) -> None:
    found = agreement(requests, SERVED_RULE)
    assert found.different == ()
    assert found.with_draft > REQUESTS
    assert sum(sum(one.accepted) for one in requests) > 0


def test_the_importer_reads_the_steps(recorded: Path, requests: Sequence[Served]) -> None:
    """The tokens of its steps are those of the outputs, and the known drafts those that the server counts."""
    found = load_acceptance(recorded, options=ImportOptions("ngram", tokenizer=MODEL))
    assert isinstance(found, TraceSet)
    trace = found.proposers["ngram"]
    assert trace.output_len.tolist() == [len(one.output) for one in requests]
    assert trace.drafted is not None
    assert trace.seen is not None
    known = trace.drafted[trace.seen > 1].sum()
    assert known == sum(sum(one.drafted) for one in requests)
