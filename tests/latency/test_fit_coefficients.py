"""Which coefficients rows might tell, what they multiply, and what is said where rows do not tell them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.latency.fit_coefficients import Coefficient, coefficients, ridge_tokens
from kplan.latency.fit_figures import figures_of
from kplan.latency.observed import Observation, Served, shape_row
from kplan.profiles import Calibration, Dtype, load_calibration, load_engine, load_hardware, load_model
from kplan.provenance import Figure

HARDWARE, BASE = load_hardware("h100-sxm"), load_calibration("h100-sxm")
SERVED = Served(HARDWARE, load_model("llama-3.1-8b"), load_engine("vllm"))
STEP = BASE.host.step_s


def row(requests: int, k: int = 0, proposer: str | None = None, context: float = 100.0) -> Observation:
    tokens = requests * (k + 1)
    shape = shape_row(
        decode_requests=requests, decode_tokens=tokens, decode_kv_tokens=requests * context, draft_k=k
    )
    return Observation("made", "", proposer, k, 0.01, np.array([shape]), np.ones(1))


def told(
    *rows: Observation, served: Served = SERVED, base: Calibration = BASE, held: tuple[str, ...] = ()
) -> dict[str, Coefficient]:
    found = coefficients(served, base, rows, frozenset(held))
    assert len({one.name for one in found}) == len(found)
    return {one.name: one for one in found}


def test_plain_rows_might_tell_the_gpu_and_the_scheduler() -> None:
    found = told(row(1), row(4))
    assert {name: one.paths for name, one in found.items()} == {
        "memory bandwidth": ("gemm.bandwidth_eff",),
        "compute rate": ("gemm.flops_eff",),
        "attention bandwidth": ("attention.bandwidth_eff",),
        "kernel launches": ("gemm.t0_s", "attention.t0_s", "elementwise.t0_s"),
        "host per step": ("host.step_s",),
        "exposed host per step": ("host.exposed_s",),
        "host per request": ("host.request_s",),
    }
    shares = {name for name, one in found.items() if one.share}
    assert shares == {"memory bandwidth", "compute rate", "attention bandwidth"}
    assert {name for name, one in found.items() if one.required} == {"compute rate"}
    on_host = {name for name, one in found.items() if one.host}
    assert on_host == {"host per step", "exposed host per step", "host per request"}
    for one in found.values():
        assert one.width == pytest.approx(np.log(5) if one.host else 1.0)


def test_times_end_within_fifty_times_and_shares_between_2_percent_and_all() -> None:
    found = told(row(1))
    assert found["host per step"].bounds(BASE) == (1 / 50, 50)
    own = BASE.gemm.flops_eff.value
    assert found["compute rate"].bounds(BASE) == pytest.approx((0.02 / own, 1 / own))
    two = Coefficient("two", ("gemm.flops_eff", "attention.flops_eff"), "", share=True)
    other = BASE.attention.flops_eff.value
    assert two.bounds(BASE) == pytest.approx((0.02 / min(own, other), 1 / max(own, other)))
    cpu = replace(two, cpu=True)
    assert cpu.bounds(BASE) == pytest.approx((0.0002 / min(own, other), 1 / max(own, other)))


def test_batches_and_contexts_of_the_rows_are_named() -> None:
    one = told(row(4, context=300), row(4, context=1500))
    assert one["host per request"].missing == (
        "all rows at one concurrency (4): the cost per request is not identified"
    )
    assert one["host per request"].required
    assert one["attention bandwidth"].missing.startswith("contexts (300 to 1500 tokens) differ too little")
    none = told(row(4, context=0), row(8, context=0))
    assert "contexts (none) differ" in none["attention bandwidth"].missing
    assert "stays hidden behind the GPU" in none["host per request"].missing


def test_rows_beyond_the_ridge_are_few_and_others_say_how_far_they_reach() -> None:
    ridge = ridge_tokens(SERVED, BASE)
    below, beyond = told(row(int(ridge))), told(row(int(ridge) + 1))
    assert below["compute rate"].missing == (
        f"no row with batch x (K + 1) > {ridge:.0f} (the largest is {int(ridge)}): "
        "the compute-bound slope is not identified"
    )
    assert beyond["compute rate"].missing.startswith(f"rows with batch x (K + 1) > {ridge:.0f} are too few")


def test_figures_held_elsewhere_are_no_candidates() -> None:
    found = told(row(1), row(4), held=("elementwise.t0_s", "host.step_s"))
    assert "kernel launches" not in found
    assert "host per step" not in found
    assert len(found) == 5


def test_formats_that_were_measured_have_figures_of_their_own() -> None:
    """fp8 weights on a GPU that computes in fp8, an fp8 cache; where not measured, bf16's stand for them."""
    model = replace(SERVED.model, weight_dtype=Dtype.FP8, kv_dtype=Dtype.FP8)
    served = replace(SERVED, hardware=replace(HARDWARE, peak_flops_fp8=HARDWARE.peak_flops), model=model)
    base = replace(BASE, gemm_fp8=replace(BASE.gemm), attention_fp8=BASE.attention)
    own = told(row(1), served=served, base=base)
    assert own["memory bandwidth"].paths == ("gemm_fp8.bandwidth_eff",)
    assert own["attention bandwidth"].paths == ("attention_fp8.bandwidth_eff",)
    assert own["kernel launches"].paths == ("gemm_fp8.t0_s", "attention_fp8.t0_s", "elementwise.t0_s")
    shared = told(row(1), served=served, base=replace(base, gemm_fp8=None, attention_fp8=None))
    assert shared["memory bandwidth"].paths == ("gemm.bandwidth_eff",)
    assert shared["attention bandwidth"].paths == ("attention.bandwidth_eff",)
    bf16 = told(row(1), base=base)
    assert bf16["compute rate"].paths == ("gemm.flops_eff",)
    assert bf16["attention bandwidth"].paths == ("attention.bandwidth_eff",)


def test_lookups_have_a_time_per_token_and_share_that_per_request() -> None:
    found = told(row(1), row(4, 3, "ngram"), row(4, 5, "ngram"), row(4, 0, "ngram"))
    assert found["host per request"].paths == ("host.request_s", "host.lookup_request_s")
    assert found["lookup per token"].paths == ("host.lookup_token_s",)
    assert found["lookup per token"].missing == (
        "rows of ngram at K = 3, 5 do not tell the lookup's time per context token"
    )
    assert "verification per request" not in found


def test_heads_have_passes_and_verifications() -> None:
    found = told(row(1), row(4, 3, "eagle"), row(4, 1, "eagle3"))
    assert found["pass of eagle"].paths == ("host.pass_s.eagle",)
    assert found["pass of eagle3"].paths == ("host.pass_s.eagle3",)
    assert found["pass of eagle"].missing == "rows of eagle at K = 3 do not tell the time of a drafter pass"
    assert found["verification per request"].paths == ("host.verify_request_s",)
    assert found["host per request"].paths == ("host.request_s",)
    assert "drafting per step" not in found


def test_rows_that_drafted_nothing_tell_of_no_drafter() -> None:
    assert told(row(1), row(4, 0, "eagle")).keys() == told(row(1), row(4)).keys()


def test_drafting_per_step_shows_with_the_pass_and_by_itself() -> None:
    base = replace(BASE, host=replace(BASE.host, draft_step_s=STEP))
    found = told(row(1), row(4, 3, "eagle"), base=base)
    assert found["pass of eagle"].paths == ("host.pass_s.eagle", "host.draft_step_s")
    assert found["drafting per step"].paths == ("host.draft_step_s",)
    assert found["drafting per step"].missing.endswith("the time of drafting per step from that of a pass")


def test_a_draft_model_has_a_layer_s_time_unless_it_has_a_pass_of_its_own() -> None:
    assert told(row(1), row(4, 3, "draft-model"))["pass of draft-model"].paths == ("host.layer_s",)
    passes: dict[str, Figure] = {**BASE.host.pass_s, "draft-model": STEP}
    own = told(row(4, 3, "draft-model"), base=replace(BASE, host=replace(BASE.host, pass_s=passes)))
    assert own["pass of draft-model"].paths == ("host.pass_s.draft-model",)


def test_a_head_without_figures_has_no_pass_but_may_have_drafting_per_step() -> None:
    host = replace(BASE.host, pass_s={"eagle3": STEP})
    found = told(row(4, 3, "eagle"), base=replace(BASE, host=host))
    assert "pass of eagle" not in found
    drafting = replace(host, draft_step_s=STEP)
    only = told(row(4, 3, "eagle"), base=replace(BASE, host=drafting))
    assert only["pass of eagle"].paths == ("host.draft_step_s",)
    assert "drafting per step" not in only


def test_on_a_cpu_kernels_begin_on_the_host_s_time() -> None:
    cpu = load_hardware("cpu")
    served, base = replace(SERVED, hardware=cpu), load_calibration(cpu)
    assert told(row(1), row(4), served=served, base=base).keys() == {
        "memory bandwidth",
        "compute rate",
        "attention bandwidth",
        "host per step",
        "host per request",
    }
    assert "host.exposed_s" in figures_of(base)
