"""The fit: right on synthetic tables, reproducible on the reference ones, refusing what is not identified."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.errors import InputError
from kplan.latency import EngineTraits, LatencyModel, StepShape, fit_kernels, fit_tables
from kplan.latency.fit import GRAPH_SIZES, fit_calibration, write_calibration
from kplan.latency.fit_host import SINGLE_CONTEXT_TOKENS, fit_host
from kplan.latency.published import load_host_timings
from kplan.profiles import Calibration, load_calibration, load_drafter, load_hardware, load_model
from kplan.provenance import Figure

HARDWARE = load_hardware("h100-sxm")
PEAK, BANDWIDTH = HARDWARE.peak_flops.value, HARDWARE.bandwidth_bytes_s.value


def test_gemm_coefficients_are_recovered_from_noisy_rows_with_outliers() -> None:
    rng = np.random.default_rng(3)
    m = rng.integers(1, 5000, 800).astype(float)
    n, k = (rng.choice([1024, 4096, 8192, 14336], 800).astype(float) for _ in range(2))
    true = {"t0_s": 5e-6, "bandwidth_eff": 0.8, "flops_eff": 0.7, "p": 2.5}
    memory = 2 * (m * k + k * n + m * n) / (BANDWIDTH * true["bandwidth_eff"])
    compute = 2 * m * n * k / (PEAK * true["flops_eff"])
    seconds = true["t0_s"] + (memory ** true["p"] + compute ** true["p"]) ** (1 / true["p"])
    seconds *= np.exp(rng.normal(0, 0.03, 800))
    seconds[::80] *= 3.0  # a stray row in every 80
    found = fit_kernels.fit_gemm(fit_tables.GemmRows(m, n, k, seconds), HARDWARE)
    for name, value in true.items():
        assert found.coefficients[name] == pytest.approx(value, rel=0.06)
        assert abs(found.coefficients[name] - value) < 4 * found.stderr[name]


def test_a_table_without_a_regime_is_refused_or_says_how_unsure_it_is() -> None:
    few = fit_tables.GemmRows(*(np.ones(5) for _ in range(4)))
    with pytest.raises(InputError, match="12 are needed"):
        fit_kernels.fit_gemm(few, HARDWARE)
    one_size = np.full(50, 64.0)
    same = fit_tables.AllReduceRows(one_size * 1024, np.full(50, 1e-5))
    with pytest.raises(InputError, match="do not identify"):
        fit_kernels.fit_all_reduce(same)


def test_l2_warm_rows_are_left_out(tmp_path: Path) -> None:
    rows = [
        {
            "kv_cache_dtype": "bfloat16",
            "num_heads": 32,
            "num_kv_heads": 8,
            "batch_size": b,
            "kv_len": s,
            "latency_ms": 1.0,
        }
        for b, s in ((1, 64), (16, 512), (256, 1024))
    ]  # footprints 0.26 MB, 33.6 MB (fits a 50 MB L2) and 1.07 GB
    pd.DataFrame(rows).to_parquet(tmp_path / fit_tables.DECODE)
    assert list(fit_tables.decode_rows(tmp_path).requests) == [1.0, 256.0]


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=fit_tables.GEMM):
        fit_calibration(tmp_path, HARDWARE, load_host_timings())


def test_host_costs_are_recovered_from_timings_made_with_them() -> None:
    # Make the published file anew from known host costs: the fit must find them again.
    silent = _silent(load_calibration("h100-sxm"))

    @cache
    def model_of(name: str, proposer: str | None, tp: int) -> LatencyModel:
        target = load_model(name)
        drafter = None if proposer is None else load_drafter(proposer, target)
        return LatencyModel(HARDWARE, target, drafter, silent, tp, EngineTraits(GRAPH_SIZES))

    step, eagle, eagle3, layer, plain, verify, per_request = 8e-4, 9e-4, 6e-4, 7e-5, 4e-5, 1.5e-4, 6e-6
    passes = {"eagle": eagle, "eagle3": eagle3}

    def gpu(name: str, tp: int, k: int) -> float:
        shape = StepShape.decode(1, k, SINGLE_CONTEXT_TOKENS)
        return float(model_of(name, None, tp).step_seconds(shape).verify_s)

    def drafting(name: str, proposer: str | None, tp: int, k: int) -> float:
        if proposer in (None, "ngram"):
            return 1e-9
        if proposer == "draft-model":
            decoder = load_drafter(proposer, load_model(name)).decoder
            assert decoder is not None
            return k * layer * decoder.layers
        return k * passes[proposer or ""]

    published = load_host_timings()
    sweep = tuple(
        row.model_copy(
            update={
                "acceptance_length": 1.0,
                "tpot_ms": 1e3
                * (
                    gpu(row.model, 1, row.k)
                    + step
                    + (plain if row.proposer is None else verify)
                    + drafting(row.model, row.proposer, 1, row.k)
                ),
            }
        )
        for row in published.k_sweep
    )
    shares = tuple(
        row.model_copy(
            update={
                "verification": gpu(row.model, row.tp, row.k),
                "sampling": plain if row.proposer is None else verify,
                "drafting": drafting(row.model, row.proposer, row.tp, row.k),
                "overhead": step + per_request * (row.batch - 1),
            }
        )
        for row in published.shares
    )
    linear = published.linear.model_copy(
        update={"overhead_s": step, "draft_fixed_s": 3 * eagle, "draft_token_s": 1e-12}
    )
    timings = published.model_copy(update={"k_sweep": sweep, "shares": shares, "linear": linear})
    found = fit_host(timings, model_of).seconds
    assert found["step_s"] == pytest.approx(step, rel=1e-6)
    assert found["pass_s:eagle"] == pytest.approx(eagle, rel=1e-6)
    assert found["pass_s:eagle3"] == pytest.approx(eagle3, rel=1e-6)
    assert found["layer_s"] == pytest.approx(layer, rel=1e-6)
    assert found["sampling:plain"] == pytest.approx(plain, rel=1e-6)
    assert found["sampling:verify"] == pytest.approx(verify, rel=1e-6)
    assert found["request_total_s"] == pytest.approx(per_request, rel=1e-6)


def _silent(calibration: Calibration) -> Calibration:
    """The same kernels with host and sampler times of 0."""
    host = calibration.host
    zero = {f.name: replace(getattr(host, f.name), value=0.0) for f in fields(host) if f.name != "pass_s"}
    passes = {name: replace(figure, value=0.0) for name, figure in host.pass_s.items()}
    return replace(calibration, host=replace(host, pass_s=passes, **zero))


@pytest.mark.shared
def test_the_shipped_calibration_is_what_the_reference_tables_give(shared_dir: Path, tmp_path: Path) -> None:
    report = fit_calibration(shared_dir / "data", HARDWARE, load_host_timings())
    write_calibration(report.document, tmp_path / "again.yaml")
    again, shipped = load_calibration(tmp_path / "again.yaml"), load_calibration("h100-sxm")
    ours, theirs = _figures(again), _figures(shipped)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=1e-3), name


def _figures(calibration: Calibration) -> dict[str, float]:
    """Every coefficient by its path."""
    found: dict[str, float] = {}

    def walk(path: str, thing: object) -> None:
        if isinstance(thing, Figure):
            found[path] = thing.value
        elif isinstance(thing, dict):
            for key, value in thing.items():
                walk(f"{path}.{key}", value)
        elif is_dataclass(thing):
            for field in fields(thing):
                walk(f"{path}.{field.name}", getattr(thing, field.name))

    walk("", calibration)
    return found


def test_shipped_figures_are_labelled_as_what_they_are() -> None:
    shipped = load_calibration("h100-sxm")
    fitted = [
        shipped.gemm.flops_eff,
        shipped.attention.tile_s,
        shipped.host.step_s,
        shipped.host.pass_s["eagle"],
    ]
    assert all(figure.provenance.kind == "fitted" and figure.stderr for figure in fitted)
    assert shipped.host.exposed_s.provenance.kind == "assumed"
