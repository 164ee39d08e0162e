"""The fit: right on synthetic tables, reproducible on the reference ones, refusing what is not identified."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kplan.errors import InputError
from kplan.latency import EngineTraits, LatencyModel, StepShape, fit_kernels, fit_tables
from kplan.latency.fit import fit_calibration
from kplan.latency.fit_figures import document, figures_of, write_calibration
from kplan.latency.fit_gpu import GRAPH_SIZES
from kplan.latency.fit_host import SINGLE_CONTEXT_TOKENS, fit_host
from kplan.latency.fit_loops import request_s
from kplan.latency.published import LoopRow, load_host_timings
from kplan.profiles import Calibration, Dtype, load_calibration, load_drafter, load_hardware, load_model
from kplan.provenance import Figure, Kind, file_digest

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
    path = tmp_path / "gpu_generation_attention_made.parquet"
    pd.DataFrame(rows).to_parquet(path)
    found = fit_tables.decode_rows(path)
    assert found is not None
    assert list(found.requests) == [1.0, 256.0]
    assert fit_tables.decode_rows(path, Dtype.FP8) is None


def gemm_table(folder: Path, dtype: str, peak: float, weight_bytes: float) -> Path:
    """A made table of one number format: bandwidth efficiency 0.8, compute 0.6, p 2, 5 us fixed.

    fp8 inputs are converted first, at a third of the bandwidth: two bytes read, one written.
    """
    rng = np.random.default_rng(11)
    m = 16 * rng.integers(1, 300, 400)
    n, k = (rng.choice([1024, 4096, 8192, 14336], 400) for _ in range(2))
    memory = (weight_bytes * k * (n + m) + 2.0 * m * n) / (BANDWIDTH * 0.8)
    compute = 2.0 * m * n * k / (peak * 0.6)
    converted = 3.0 * m * k / (BANDWIDTH / 3) if dtype == "fp8" else 0.0
    seconds = 5e-6 + converted + np.sqrt(memory**2 + compute**2)
    latency = seconds * 1e3 * np.exp(rng.normal(0, 0.02, 400))
    path = folder / "gpu_gemm_made.parquet"
    pd.DataFrame({"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency_ms": latency}).to_parquet(path)
    return path


def test_fp8_rows_are_fitted_against_the_fp8_peak_and_one_byte_per_input(tmp_path: Path) -> None:
    path = gemm_table(tmp_path, "fp8", 1978.9e12, 1.0)
    base = load_calibration("h100-sxm")
    fit = fit_calibration(HARDWARE, base, tables=tmp_path)
    found = fit.calibration.gemm_fp8
    assert found is not None
    for figure, value in ((found.t0_s, 5e-6), (found.bandwidth_eff, 0.8), (found.flops_eff, 0.6)):
        assert figure.value == pytest.approx(value, rel=0.05)
        assert figure.provenance.source == f"gpu_gemm_made.parquet, blake2b {file_digest(path)}"
    assert fit.calibration.gemm == base.gemm  # the table has no bf16 rows
    assert found.convert_eff is not None
    assert found.convert_eff.value == pytest.approx(1 / 3, rel=0.1)
    names = ("t0_s", "bandwidth_eff", "flops_eff", "p", "convert_eff")
    assert fit.paths == {f"gemm_fp8.{name}" for name in names}


def test_unaligned_fp8_rows_are_left_out(tmp_path: Path) -> None:
    path = gemm_table(tmp_path, "fp8", 1978.9e12, 1.0)
    table = pd.read_parquet(path)
    above = table.assign(m=table["m"] + 1, latency_ms=table["latency_ms"] * 2)
    pd.concat([table, above]).to_parquet(path)
    rows = fit_tables.gemm_rows(path, Dtype.FP8)
    assert rows is not None
    assert len(rows.m) == len(table)
    assert not np.any(rows.m % 16)


def test_only_what_a_table_covers_is_fitted_and_the_rest_says_whose_it_is(tmp_path: Path) -> None:
    gemm_table(tmp_path, "bfloat16", 312e12, 2.0)
    gpu = load_hardware("a100")
    fit = fit_calibration(gpu, load_calibration(gpu), tables=tmp_path, timings=load_host_timings())
    figures = figures_of(fit.calibration)
    assert {path.split(".")[0] for path in fit.paths} == {"gemm"}
    assert all(figures[path].provenance.kind is Kind.FITTED for path in fit.paths)
    left = [figure for path, figure in figures.items() if path not in fit.paths]
    assert all(figure.provenance.kind is Kind.ASSUMED for figure in left)
    assert all("h100-sxm" in figure.provenance.source for figure in left)


def test_what_was_assumed_is_not_said_to_be_fitted(tmp_path: Path) -> None:
    gemm_table(tmp_path, "bfloat16", PEAK, 2.0)
    base = load_calibration("h100-sxm")
    fit = fit_calibration(HARDWARE, base, tables=tmp_path, timings=load_host_timings())
    assert {"gemm.t0_s", "host.step_s", "host.lookup_token_s"} <= fit.paths
    assert not {"host.exposed_s", "sampler.bytes_per_logit", "sampler.verify_bytes_per_logit"} & fit.paths


def test_the_half_of_fp8_attention_without_a_table_is_assumed(tmp_path: Path) -> None:
    tile, efficiency = 2e-8, 0.7
    sizes = [(b, s) for b in (256, 512, 1024) for s in (128, 512, 2048)]  # none that stays in the L2 cache
    sizes += [(1, 64), (1, 256), (1, 131072), (4, 131072), (16, 131072)]
    rows = pd.DataFrame(sizes, columns=["batch_size", "kv_len"]).assign(num_heads=32, num_kv_heads=8)
    read = rows.batch_size * (rows.kv_len * 8 * 128 * 2 + 2 * 32 * 128 * 2) / (BANDWIDTH * efficiency)
    seconds = 1e-5 + np.sqrt((tile * rows.batch_size * 8) ** 2 + read**2)
    rows = rows.assign(kv_cache_dtype="fp8", latency_ms=seconds * 1e3)
    rows.to_parquet(tmp_path / "gpu_generation_attention_made.parquet")
    base = replace(load_calibration("h100-sxm"), attention_fp8=None)
    fit = fit_calibration(HARDWARE, base, tables=tmp_path)
    found = fit.calibration.attention_fp8
    assert found is not None
    assert found.bandwidth_eff.value == pytest.approx(efficiency, rel=0.02)
    assert fit.paths == {f"attention_fp8.{name}" for name in ("t0_s", "tile_s", "bandwidth_eff", "p")}
    taken, own = found.flops_eff, base.attention.flops_eff
    assert (taken.value, taken.stderr, taken.provenance.kind) == (own.value, None, Kind.ASSUMED)


def test_a_folder_without_tables_or_with_two_of_a_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"at least one of \*_gemm_\*\.parquet"):
        fit_tables.find_tables(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}_gemm_x.parquet").touch()
    with pytest.raises(InputError, match=r"a_gemm_x\.parquet, b_gemm_x\.parquet"):
        fit_tables.find_tables(tmp_path)


def test_tables_that_are_cut_off_or_hold_no_time_are_refused(tmp_path: Path) -> None:
    path = gemm_table(tmp_path, "bfloat16", PEAK, 2.0)
    whole = pd.read_parquet(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"gpu_gemm_made\.parquet.*(cannot be read|not a readable)"):
        fit_tables.gemm_rows(path)
    for value in (0.0, -1.0, float("nan")):
        spoiled = whole.copy()
        spoiled.loc[3, "latency_ms"] = value
        spoiled.to_parquet(path)
        with pytest.raises(InputError, match=r"latency_ms in .* must be positive .data row 4"):
            fit_tables.gemm_rows(path)
    whole.drop(columns="latency_ms").to_parquet(path)
    with pytest.raises(InputError, match=r"latency_ms.*is missing"):
        fit_tables.gemm_rows(path)


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path) -> None:
    shipped = load_calibration("h100-sxm")
    write_calibration(shipped, tmp_path / "again.yaml")
    assert load_calibration(tmp_path / "again.yaml") == shipped
    assert [path.name for path in tmp_path.iterdir()] == ["again.yaml"]


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


def test_a_growth_of_which_any_share_may_be_shown_is_unsure_by_all_of_it() -> None:
    figure = load_calibration("h100-sxm").host.verify_request_s  # half of the growth
    assert figure.stderr is not None
    assert figure.value - 2 * figure.stderr < 0
    assert figure.value + 2 * figure.stderr > 2 * figure.value


def test_the_host_s_time_per_request_is_what_loops_leave_beside_the_gpu() -> None:
    """Loops of a made server whose host takes 1 ms a step and 25 us a request."""
    model = LatencyModel(HARDWARE, load_model("qwen3-32b"), None, _silent(load_calibration("h100-sxm")), tp=4)
    rows = []
    for clients in (8, 32, 128):
        batch = StepShape.decode(clients, 0, 1500)
        # outputs so long that hardly a step has a prefill, so a step is the decode alone
        gpu_s = float(model.step_seconds(batch).total_s)
        rows.append(
            LoopRow(
                source="made",
                model="qwen3-32b",
                tp=4,
                prompt_tokens=1,
                output_tokens=2998,
                concurrency=clients,
                tpot_ms=(gpu_s + 1e-3 + 25e-6 * clients) * 1e3,
            )
        )
    found, error = request_s(tuple(rows), {("qwen3-32b", 4): model}, 1e-3)
    assert found == pytest.approx(25e-6, rel=0.05)
    assert error < 2e-6


def _silent(calibration: Calibration) -> Calibration:
    """The same kernels with host and sampler times of 0."""
    host = calibration.host
    figures = {f.name: getattr(host, f.name) for f in fields(host) if f.name != "pass_s"}
    zero = {name: replace(figure, value=0.0) for name, figure in figures.items() if figure is not None}
    passes = {name: replace(figure, value=0.0) for name, figure in host.pass_s.items()}
    return replace(calibration, host=replace(host, pass_s=passes, **zero))


@pytest.mark.shared
def test_the_shipped_calibration_is_what_the_reference_tables_give(shared_dir: Path, tmp_path: Path) -> None:
    shipped = load_calibration("h100-sxm")
    report = fit_calibration(HARDWARE, shipped, tables=shared_dir / "data", timings=load_host_timings())
    write_calibration(report.calibration, tmp_path / "again.yaml")
    again = load_calibration(tmp_path / "again.yaml")
    assert _alike(document(again), document(shipped))
    assumed = {path for path, figure in figures_of(again).items() if figure.provenance.kind is Kind.ASSUMED}
    traffic = {"sampler.bytes_per_logit", "sampler.verify_bytes_per_logit"}
    assert assumed == {"host.exposed_s", "host_alternate.exposed_s", *traffic}
    ours, theirs = _figures(again), _figures(shipped)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=1e-3), name


def _alike(one: Any, other: Any) -> bool:
    """Whether two documents are the same but for the last digits, which are the processor's."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-4)
    return bool(one == other)


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
