"""The published linear model of steps, and how its file is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import StepShape
from kplan.latency.linear import LinearModel
from kplan.latency.published import SHIPPED, LinearRow, load_host_timings
from kplan.profiles import DrafterKind

ROW = LinearRow(
    source="made",
    model="llama-3.1-8b",
    proposer="eagle",
    k=3,
    batches=(1,),
    overhead_s=0.002,
    draft_fixed_s=0.003,
    draft_token_s=0.0005,
    draft_kv_token_s=0.00001,
    lookup_share=0.25,
    verify_fixed_s=0.01,
    verify_token_s=0.001,
    verify_kv_token_s=0.0001,
)
MIXED = StepShape(
    decode_requests=2,
    decode_tokens=8,
    decode_kv_tokens=100,
    decode_qk_tokens=400,
    prefill_requests=1,
    prefill_tokens=5,
    prefill_kv_tokens=50,
    draft_k=3,
)


@pytest.mark.parametrize(
    ("kind", "draft_s"),
    [(None, 0.0), (DrafterKind.LOOKUP, 0.25 * 0.033), (DrafterKind.HEAD, 0.003 + 4 * 0.0005 + 100 * 0.00001)],
)
def test_a_step_is_linear_in_tokens_and_cache(kind: DrafterKind | None, draft_s: float) -> None:
    """13 tokens over a cache of 100: 10 ms, 13 x 1 ms, 100 x 0.1 ms."""
    step = LinearModel(ROW, kind).step_seconds(MIXED)
    assert float(step.verify_s) == pytest.approx(0.033)
    assert float(step.draft_s) == pytest.approx(draft_s)
    assert (float(step.sampling_s), float(step.overhead_s)) == (0.0, 0.002)
    assert float(step.total_s) == pytest.approx(0.035 + draft_s)


def test_a_grid_of_drafts_is_one_of_steps() -> None:
    step = LinearModel(ROW, DrafterKind.HEAD).step_seconds(StepShape(1, 1, 10, 10, draft_k=np.arange(3)))
    parts = (step.verify_s, step.draft_s, step.sampling_s, step.overhead_s)
    assert [part.shape for part in parts] == [(3,)] * 4
    assert np.diff(step.draft_s) == pytest.approx(0.0005)


def test_the_shipped_timings_name_their_file_and_steps_are_tokens_long() -> None:
    """7.07 ms a token at one token a step; 4.37 ms at 2.1."""
    timings = load_host_timings()
    assert timings.file.startswith(f"{Path(SHIPPED).name}, blake2b ")
    assert [row.step_s for row in timings.k_sweep[:2]] == pytest.approx([0.00707, 0.009177])


@pytest.mark.parametrize(
    ("text", "told"),
    [("a: [", "is not valid YAML"), ("hardware: 1\nsources: 2\nk_sweep: [{k: -1}]", "hardware: ")],
)
def test_timings_that_cannot_be_read_are_refused_by_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "timings.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"host timings: got '{path}', ({told})"):
        load_host_timings(path)
