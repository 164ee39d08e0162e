"""Fits on step logs and end-to-end tables: known coefficients come back, missing regimes are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kplan.errors import InputError
from kplan.latency.fit import Measured, _thinned, base_calibration, fit_calibration
from kplan.latency.fit_coefficients import ridge_tokens
from kplan.latency.fit_figures import figures_of, with_figures
from kplan.latency.fit_insitu import fit_in_situ
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import TpotRow, read_tpot
from kplan.latency.observed import Observation, Served
from kplan.profiles import load_calibration, load_engine, load_hardware, load_model
from kplan.provenance import Kind
from tests.latency.server import Server

HARDWARE, BASE = load_hardware("h100-sxm"), load_calibration("h100-sxm")
SERVED = Served(HARDWARE, load_model("llama-3.1-8b"), load_engine("vllm"))
REQUEST_S = 2e-5
SLOW_HOST = REQUEST_S / BASE.host.request_s.value
"""The made server's CPU, against the base's, in what it does per request."""

TRUE = Server(
    bandwidth_eff=0.8,
    flops_eff=0.55,
    step_s=2e-3,
    request_s=REQUEST_S,
    pass_s=1.4e-3,
    rest={path: figure.value for path, figure in figures_of(BASE).items()}
    | {"host.lookup_request_s": BASE.host.lookup_request_s.value * SLOW_HOST},
)
HEADER = "concurrency,tpot_ms,k,proposer,acceptance_length,prompt_tokens,output_tokens"
PROMPT, OUTPUT, PER_DRAFT = 200, 240, 0.5


def write_log(path: Path, batches: tuple[int, ...]) -> Path:
    """Steps without prefills, with noise of 1%: no drafts, n-gram at K = 3 and 7, EAGLE up to batch 16."""
    rng = np.random.default_rng(5)
    lines = []
    for requests in batches:
        for context in (300, 1500):
            steps = [(None, 0, TRUE.plain_s(requests, context))]
            steps += [("ngram", k, TRUE.ngram_s(requests, k, context)) for k in (3, 7)]
            if requests <= 16:
                steps += [("eagle", k, TRUE.eagle_s(requests, k, context)) for k in (1, 3)]
            for proposer, k, seconds in steps:
                record = {
                    "step_s": seconds * float(np.exp(rng.normal(0, 0.01))),
                    "decode_requests": requests,
                    "k": k,
                    "context": context,
                    "proposer": proposer,
                }
                lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_table(
    path: Path, clients: tuple[int, ...], ks: tuple[int, ...] = (0, 3), noise: float = 0.01
) -> Path:
    rng = np.random.default_rng(6)
    lines = ["# runs of a made server", HEADER]
    for count in clients:
        for k in ks:
            length = 1 + PER_DRAFT * k
            seconds = TRUE.closed_loop_s(count, k, length, PROMPT, OUTPUT) * np.exp(rng.normal(0, 0.01))
            lines.append(
                f"{count},{seconds / length * 1e3},{k},{'ngram' if k else ''},{length},{PROMPT},{OUTPUT}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path


def measured(*rows: list[Observation]) -> Measured:
    return Measured(SERVED, [row for part in rows for row in part])


def test_a_step_log_gives_back_the_coefficients_it_was_made_with(tmp_path: Path) -> None:
    rows = read_steps(write_log(tmp_path / "steps.jsonl", (1, 4, 16, 64, 128)))
    fit = fit_calibration(HARDWARE, BASE, measured=measured(rows))
    found = figures_of(fit.calibration)
    true = {
        "gemm.bandwidth_eff": TRUE.bandwidth_eff,
        "gemm.flops_eff": TRUE.flops_eff,
        "host.step_s": TRUE.step_s,
        "host.pass_s.eagle": TRUE.pass_s,
        "host.request_s": TRUE.request_s,
    }
    for path, value in true.items():
        assert path in fit.paths
        assert found[path].value == pytest.approx(value, rel=0.15 if path == "host.request_s" else 0.04)
        stderr = found[path].stderr
        assert stderr is not None
        assert abs(found[path].value - value) < 4 * stderr
        assert found[path].provenance.kind is Kind.FITTED
        assert found[path].provenance.source.startswith("steps.jsonl, blake2b ")
        assert str(tmp_path) not in found[path].provenance.source
    assert fit.fits[0].mape < 0.02


def test_stray_steps_do_not_bend_the_fit(tmp_path: Path) -> None:
    """One step in 14 takes three times as long, as a collected garbage or a neighbour makes it."""
    rows = read_steps(write_log(tmp_path / "steps.jsonl", (1, 4, 16, 64, 128)))
    strayed = [replace(row, seconds=row.seconds * (3 if i % 14 == 5 else 1)) for i, row in enumerate(rows)]
    found = fit_calibration(HARDWARE, BASE, measured=measured(strayed)).calibration
    assert found.gemm.bandwidth_eff.value == pytest.approx(TRUE.bandwidth_eff, rel=0.06)
    assert found.gemm.flops_eff.value == pytest.approx(TRUE.flops_eff, rel=0.1)
    assert found.host.pass_s["eagle"].value == pytest.approx(TRUE.pass_s, rel=0.06)


def test_a_long_log_is_thinned_and_a_short_table_is_not(tmp_path: Path) -> None:
    log = read_steps(write_log(tmp_path / "steps.jsonl", (1, 16, 128)))
    table = read_tpot(write_table(tmp_path / "tpot.csv", (1, 128)))
    fit = fit_calibration(HARDWARE, BASE, measured=measured(log * 100, table))
    assert sum(line.rows for line in fit.fits if line.name.startswith("steps")) <= 2000
    assert sum(line.rows for line in fit.fits if line.name.startswith("tpot")) == 4
    assert any("2,000 of them were used" in note for note in fit.notes)


def test_a_tpot_table_gives_back_the_coefficients_it_was_made_with(tmp_path: Path) -> None:
    rows = read_tpot(write_table(tmp_path / "tpot.csv", (1, 2, 8, 32, 64, 128, 192), ks=(0, 1, 3, 7)))
    fit = fit_calibration(HARDWARE, BASE, measured=measured(rows))
    found = figures_of(fit.calibration)
    for path, value, tolerance in (
        ("gemm.bandwidth_eff", TRUE.bandwidth_eff, 0.04),
        ("gemm.flops_eff", TRUE.flops_eff, 0.05),
        ("host.step_s", TRUE.step_s, 0.1),
    ):
        assert found[path].value == pytest.approx(value, rel=tolerance), path


def test_tables_logs_and_runs_are_fitted_together(tmp_path: Path) -> None:
    log = read_steps(write_log(tmp_path / "steps.jsonl", (1, 16, 128)))
    table = read_tpot(write_table(tmp_path / "tpot.csv", (1, 32, 128)))
    fit = fit_calibration(HARDWARE, BASE, measured=measured(log, table))
    source = fit.calibration.gemm.flops_eff.provenance.source
    assert "steps.jsonl, blake2b" in source
    assert "tpot.csv, blake2b" in source
    assert {line.name for line in fit.fits} == {
        "steps.jsonl, no drafts",
        "steps.jsonl, ngram",
        "steps.jsonl, eagle",
        "tpot.csv, no drafts",
        "tpot.csv, ngram",
    }


def test_what_rows_do_not_tell_stays_the_base_and_says_so(tmp_path: Path) -> None:
    gpu = load_hardware("a100")
    served = Served(gpu, SERVED.model, SERVED.engine)
    base = base_calibration(gpu)
    rows = read_tpot(write_table(tmp_path / "tpot.csv", (1, 2, 4, 8), ks=(0,)))
    fit = fit_calibration(gpu, base, measured=Measured(served, rows), partial=True)
    assert fit.calibration.hardware == "a100"
    slope = fit.calibration.gemm.flops_eff
    assert slope.value == base.gemm.flops_eff.value
    assert slope.provenance.kind is Kind.ASSUMED
    assert "h100-sxm" in slope.provenance.source
    assert slope.stderr is None
    assert any("no row with K > 0" in note for note in fit.notes)


def test_a_second_gemm_source_no_longer_spans_the_band_of_fitted_matrices(tmp_path: Path) -> None:
    rows = read_steps(write_log(tmp_path / "steps.jsonl", (1, 16, 128)))
    assert BASE.gemm_alternate is not None
    assert fit_calibration(HARDWARE, BASE, measured=measured(rows)).calibration.gemm_alternate is None


def test_rows_without_large_batches_are_refused_by_name(tmp_path: Path) -> None:
    rows = read_tpot(write_table(tmp_path / "tpot.csv", (1, 2, 4, 8)))
    with pytest.raises(InputError, match=r"no row with batch x \(K \+ 1\) > \d+ .*32\).*compute-bound slope"):
        fit_calibration(HARDWARE, BASE, measured=measured(rows))


def test_rows_at_one_concurrency_are_refused_by_name(tmp_path: Path) -> None:
    rows = read_tpot(write_table(tmp_path / "tpot.csv", (128,), ks=(0, 1, 3, 5)))
    with pytest.raises(InputError, match=r"all rows at one concurrency \(128\): the cost per request"):
        fit_calibration(HARDWARE, BASE, measured=measured(rows))


def test_too_few_rows_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    rows = read_tpot(write_table(tmp_path / "tpot.csv", (1, 128), ks=(0,)))
    with pytest.raises(InputError, match="got 2, at least 3"):
        fit_calibration(HARDWARE, BASE, measured=measured(rows))
    with pytest.raises(InputError, match="--tables, --steps or --tpot"):
        fit_calibration(HARDWARE, BASE)


def test_more_requests_than_the_engine_seats_are_refused() -> None:
    row = TpotRow(concurrency=2000, tpot_ms=30, prompt_tokens=100, output_tokens=100)
    rows = [row.observation("runs.csv, blake2b 0", f"line {n}") for n in range(3)]
    with pytest.raises(InputError, match="runs at most 1024"):
        fit_calibration(HARDWARE, BASE, measured=Measured(SERVED, rows))


def test_coefficients_from_elsewhere_are_held(tmp_path: Path) -> None:
    """What kernel tables of the same run gave is not fitted again: rows tell the host alone."""
    shipped = figures_of(BASE)
    gpu = {"gemm.bandwidth_eff": TRUE.bandwidth_eff, "gemm.flops_eff": TRUE.flops_eff}
    base = with_figures(BASE, {path: replace(shipped[path], value=value) for path, value in gpu.items()})
    rows = read_steps(write_log(tmp_path / "steps.jsonl", (1, 4, 16, 64)))
    held = frozenset(path for path in figures_of(BASE) if not path.startswith("host."))
    fit = fit_in_situ(SERVED, base, rows, held)
    assert fit.paths <= {path for path in figures_of(BASE) if path.startswith("host.")}
    assert fit.calibration.host.step_s.value == pytest.approx(TRUE.step_s, rel=0.05)
    assert fit.calibration.host.pass_s["eagle"].value == pytest.approx(TRUE.pass_s, rel=0.03)


def test_repeating_runs_tells_no_more_of_what_they_cannot_show(tmp_path: Path) -> None:
    # Six settings, each run once, and 40 times.
    rows = read_tpot(write_table(tmp_path / "t.csv", (1, 8, 32)))
    once, often = (fit_in_situ(SERVED, BASE, rows * times, partial=True) for times in (1, 40))
    assert often.names == once.names
    before, after = figures_of(once.calibration), figures_of(often.calibration)
    for path in once.paths:
        assert after[path].value == pytest.approx(before[path].value, rel=0.01)
        assert after[path].stderr == pytest.approx(before[path].stderr or 0.0, rel=0.05)


def test_a_routed_model_turns_compute_bound_where_its_experts_do() -> None:
    """Mixtral reads 46.4 B parameters in its layers and multiplies by 12.6 B: 3.7 times the tokens."""
    dense = ridge_tokens(SERVED, BASE)
    compute, read = 989.4e12 * BASE.gemm.flops_eff.value, 3.35e12 * BASE.gemm.bandwidth_eff.value
    assert dense == pytest.approx(compute / read, rel=1e-12)  # 2 bytes read and 2 flops per parameter
    attention, expert = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 8 * 4096, 3 * 4096 * 14336
    routed = ridge_tokens(replace(SERVED, model=load_model("mixtral-8x7b")), BASE)
    assert routed / dense == pytest.approx((attention + 8 * expert) / (attention + 2 * expert), rel=1e-12)


def test_thinning_keeps_every_setting_of_a_log_that_repeats_itself(tmp_path: Path) -> None:
    """4,000 steps in turn of batch 1 and 128: every second row alone would be one batch."""
    pair = read_steps(write_log(tmp_path / "steps.jsonl", (1, 128)))
    turns = [pair[0], pair[-1]] * 2000
    kept, _ = _thinned(turns)
    shares = [sum(row is one for row in kept) for one in (pair[0], pair[-1])]
    assert sum(shares) == 2000
    assert min(shares) > 900
