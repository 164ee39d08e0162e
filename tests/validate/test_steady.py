"""Predictors of the average step: laws, closed forms, and acceptance inferred and found again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency import StepShape
from kplan.profiles import load_drafter
from kplan.validate.predict.breakdown import shares, step_ms
from kplan.validate.predict.context import Decode
from kplan.validate.predict.context import predict as predict_context
from kplan.validate.predict.serving import predict as predict_serving
from kplan.validate.predict.steady import Crowd, Stand, geometric_emitted, infer_alpha, steady
from kplan.validate.table import Metric, PublishedRow, PublishedTable, Trust


def make_table(rows: list[dict[str, Any]], measured: list[float], **scenario: Any) -> PublishedTable:
    return PublishedTable(
        name="made",
        title="made",
        source="made",
        trust=Trust.DIRECT,
        metric=Metric.SPEEDUP,
        predictor="made",
        settings={"scenario": {"prompt_tokens": 100, "output_tokens": 201} | scenario},
        rows=tuple(PublishedRow(measured=m, at=at) for at, m in zip(rows, measured, strict=True)),
    )


@pytest.fixture(scope="module")
def stand() -> Stand:
    return Stand(make_table([{"batch": 1}], [1.0]))


def test_one_request_is_its_prefill_and_its_steps(stand: Stand) -> None:
    """201 tokens without speculation: one prefill of 100 tokens, 200 decodes at context 200 in the mean."""
    latency = stand.latencies(None, 0)[0]
    prefill = StepShape(0, 0, 0, 0, 1, 100, 100, 5000, 1, 1, 0)
    seconds = float(latency.step_seconds(prefill).total_s)
    seconds += 200 * float(latency.step_seconds(StepShape.decode(1, 0, 200.5)).total_s)
    for prefill_first in (False, True):
        crowd = Crowd(1, 100.0, 201.0, 200.5, prefill_first)
        assert steady(latency, crowd, 0, 1.0).tokens_s == pytest.approx(201 / seconds, rel=1e-3)


def test_a_batch_shares_its_steps_among_prompts_and_decodes(stand: Stand) -> None:
    """402 requests of 201 tokens: each step brings exactly two prompts, so all steps are alike."""
    latency = stand.latencies(None, 0)[0]
    crowd = Crowd(402, 100.0, 201.0, 200.0)
    step = StepShape(400, 400, 80_000, 80_000, 2, 200, 200, 10_000, 402, 402, 0)
    seconds = float(latency.step_seconds(step).total_s)
    assert steady(latency, crowd, 0, 1.0).tokens_s == pytest.approx(402 * 201 / (201 * seconds))


def test_geometric_tokens_per_step() -> None:
    assert geometric_emitted(0.5, 3) == pytest.approx(1.875)
    assert geometric_emitted(0.0, 3) == 1.0
    assert geometric_emitted(1.0, 3) == 4.0


def test_acceptance_is_inferred_from_a_speedup() -> None:
    """A step that costs 1.25 times as much: 1 + a + a^2 = 1.75 x 1.25 at a = 0.6984."""
    alpha = infer_alpha(lambda emitted: emitted / 1.25, 2, 1.75)
    assert alpha == pytest.approx((np.sqrt(1 + 4 * (1.75 * 1.25 - 1)) - 1) / 2)
    with pytest.raises(InputError, match=r"0\.800 to 2\.400"):
        infer_alpha(lambda emitted: emitted / 1.25, 2, 2.5)


def test_the_acceptance_behind_a_curve_is_found_from_its_first_point(stand: Stand) -> None:
    """Speedups made at one acceptance are predicted at every batch; the row used says so."""
    batches = [32, 2, 8]
    emitted = geometric_emitted(0.7, 3)
    drafter = load_drafter("eagle", stand.model)
    made = [stand.speedups(drafter, stand.crowd(batch), 3)[0](emitted) for batch in batches]
    rows = [{"proposer": "eagle", "k": 3, "batch": batch} for batch in batches]
    found = predict_serving(make_table(rows, made))
    assert [each.value for each in found] == pytest.approx(made, rel=1e-5)
    assert [each.used_in_fit for each in found] == [False, True, False]
    assert "0.700" in found[1].note


def test_shares_of_a_step_add_up_to_one() -> None:
    at = {"proposer": "eagle", "k": 3, "emitted": 2.3, "batch": 16}
    stages = ["verification", "drafting", "sampling", "overhead"]
    found = shares(make_table([at | {"stage": stage} for stage in stages], [0.25] * 4))
    assert sum(each.value for each in found) == pytest.approx(1.0)
    assert found[0].value == max(each.value for each in found)
    with pytest.raises(InputError, match="verification, drafting, sampling, overhead"):
        shares(make_table([at | {"stage": "idle"}], [0.25]))


def test_step_times_are_those_of_the_latency_model(stand: Stand) -> None:
    rows = [{"proposer": "eagle", "k": k, "batch": 8} for k in (0, 3)]
    found = step_ms(make_table(rows, [7.0, 10.0]))
    off = stand.latencies(None, 0)[0].step_seconds(StepShape.decode(8, 0, 200))
    assert found[0].value == pytest.approx(float(off.total_s) * 1e3, rel=1e-3)
    # three passes of the head, each at least the 0.8 ms that its host work takes
    assert found[1].value - found[0].value > 3 * 0.8
    assert found[0].low <= found[0].value <= found[0].high


def test_long_contexts_take_the_k_with_the_highest_speedup(stand: Stand) -> None:
    decode = Decode(stand, "eagle", 4, 8000.0)
    gains = [decode.speedups(k)[0](geometric_emitted(0.8, k)) for k in range(1, 9)]
    assert decode.best_k(0.8) == 1 + int(np.argmax(gains))
    rows = [{"proposer": "eagle", "context": 8000, "batch": batch, "k": 2} for batch in (4, 16)]
    found = predict_context(make_table(rows, [1.3, 1.2]))
    assert found[0].value == pytest.approx(1.3)
    assert [each.used_in_fit for each in found] == [True, False]


def test_an_unknown_setting_names_itself() -> None:
    table = make_table([{"batch": 1}], [1.0])
    with pytest.raises(InputError, match="overlap"):
        Stand(replace_settings(table, {"overlap": False}))


def replace_settings(table: PublishedTable, extra: dict[str, Any]) -> PublishedTable:
    return table.model_copy(update={"settings": table.settings | extra})
