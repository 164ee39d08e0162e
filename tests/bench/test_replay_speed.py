"""Speed of replaying lookup proposers; the answers are asserted too. Run with `make bench`.

Target: 10^6 output positions in under 30 s on one core, with contexts of 200 to 4,200 tokens.
"""

from __future__ import annotations

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from kplan.acceptance import TraceSet, walk
from kplan.acceptance.replay import NgramRule, Requests, replay_requests
from kplan.acceptance.suffix import SuffixRule


def copying(requests: int, outputs: int) -> Requests:
    """Outputs that copy pieces of 1 to 60 tokens of their prompts, as edits and summaries do."""
    draw = np.random.default_rng(5)
    prompts, copies = [], []
    for _ in range(requests):
        prompt = (draw.zipf(1.3, int(draw.integers(200, 3_200))) % 50_000).astype(np.int32)
        starts = draw.integers(0, len(prompt), outputs)
        pieces = [prompt[at : at + n] for at, n in zip(starts, draw.integers(1, 61, outputs), strict=True)]
        prompts.append(prompt)
        copies.append(np.concatenate(pieces)[:outputs])
    return Requests(tuple(map(str, range(requests))), tuple(prompts), tuple(copies), "made")


@pytest.mark.parametrize(
    ("rule", "least"),
    [(NgramRule(), 3.0), (SuffixRule(max_cached_requests=0), 3.0), (SuffixRule(), 3.0)],
    ids=["ngram", "suffix-own", "suffix"],
)
def test_a_million_positions(benchmark: BenchmarkFixture, rule: NgramRule | SuffixRule, least: float) -> None:
    requests = copying(1_000, 1_000)
    traces: TraceSet = benchmark.pedantic(
        replay_requests, args=(requests, rule), kwargs={"workers": 1}, rounds=1, warmup_rounds=0
    )
    (trace,) = traces.proposers.values()
    assert len(trace.acc) == 1_000_000
    # Pieces have 30 tokens on average: most of each is drafted once its start is recognised.
    assert walk(trace, rule.k).acceptance_length > least
