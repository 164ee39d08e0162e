"""Which tables give which sections of a calibration, and what is said of each."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kplan.errors import InputError
from kplan.latency import EngineTraits, LatencyModel
from kplan.latency.fit_figures import figures_of
from kplan.latency.fit_gpu import NO_FP8_PEAK, fit_gpu
from kplan.latency.fit_host import HostFitResult, ModelFactory
from kplan.latency.published import HostTimings, load_host_timings
from kplan.profiles import Calibration, load_calibration, load_hardware
from kplan.provenance import Figure, Kind, Provenance, file_digest

HARDWARE, BASE = load_hardware("h100-sxm"), load_calibration("h100-sxm")
BANDWIDTH, PEAK = HARDWARE.bandwidth_bytes_s.value, HARDWARE.peak_flops.value
NO_FP8 = replace(HARDWARE, peak_flops_fp8=None)


def csv(folder: Path, name: str, **columns: object) -> None:
    pd.DataFrame(columns).to_csv(folder / name, index=False)


def sizes(*sides: tuple[int, ...]) -> list[np.ndarray]:
    return [np.array(column) for column in zip(*product(*sides), strict=True)]


def gemm_table(folder: Path, dtype: str = "bfloat16") -> int:
    """bf16 at 0.8 of the bandwidth and 0.6 of the peak, p = 2, 5 us fixed."""
    m, n, k = sizes((1, 16, 320, 1008, 4000), (1024, 5120, 14_336), (2048, 8192))
    memory, compute = 2 * (m * k + k * n + m * n) / (0.8 * BANDWIDTH), 2 * m * n * k / (0.6 * PEAK)
    latency = 1e3 * (5e-6 + np.hypot(memory, compute))
    csv(folder, "h_gemm_x.csv", gemm_dtype=[dtype] * len(m), m=m, n=n, k=k, latency_ms=latency)
    return len(m)


def decode_table(folder: Path, dtype: str = "bfloat16", **more: object) -> int:
    """Per request and KV head 40 ns, 0.7 of the bandwidth, p = 2, 8 us fixed; too short to be computing."""
    batch, kv = sizes((1, 16, 64, 1024), (1, 4, 16, 8192, 65_536, 131_072))
    stored = {"bfloat16": 2, "fp8": 1}[dtype]
    moved = batch * (kv * 8 * 128 * 2 * stored + 2 * 32 * 128 * 2)
    latency = 1e3 * (8e-6 + np.hypot(40e-9 * batch * 8, moved / (0.7 * BANDWIDTH)))
    columns = {"batch_size": batch, "kv_len": kv, "num_heads": 32, "num_kv_heads": 8, "latency_ms": latency}
    csv(folder, "h_generation_attention_x.csv", kv_cache_dtype=dtype, **columns, **more)
    return len(batch)


def prefill_table(folder: Path, dtype: str = "bfloat16") -> int:
    """0.4 of the bandwidth, 0.5 of the peak, 6 us fixed."""
    batch, length = sizes((1, 8), (16, 256, 1024, 4096, 8192))
    stored = {"bfloat16": 2, "fp8": 1}[dtype]
    moved = batch * length * 2 * 128 * (32 * 2 + 8 * stored)
    flops = 4 * 32 * 128 * batch * length**2 / 2
    latency = 1e3 * (6e-6 + moved / (0.4 * BANDWIDTH) + flops / (0.5 * PEAK))
    columns = {
        "batch_size": batch,
        "kv_len": length,
        "num_heads": 32,
        "num_kv_heads": 8,
        "latency_ms": latency,
    }
    csv(folder, "h_context_attention_x.csv", kv_cache_dtype=dtype, **columns)
    return len(batch)


TOKENS = np.array([1, 8, 64, 256, 1024, 4096])


def layer_table(folder: Path) -> None:
    """0.9 of the bandwidth, 7 us fixed."""
    latency = 1e3 * (7e-6 + TOKENS * 90_000 / (0.9 * BANDWIDTH))
    csv(folder, "h_elementwise_x.csv", num_tokens=TOKENS, bytes_per_token=90_000, latency_ms=latency)


def sampler_table(folder: Path, reached: float) -> None:
    latency = 1e3 * (1e-5 + TOKENS * 32_000 * 14 / (reached * BANDWIDTH))
    csv(folder, "h_sampler_x.csv", rows=TOKENS, vocab=32_000, latency_ms=latency)


def values(calibration: Calibration, section: str) -> dict[str, float]:
    return {
        path.removeprefix(f"{section}."): figure.value
        for path, figure in figures_of(calibration).items()
        if path.startswith(f"{section}.")
    }


def test_a_gemm_table_prices_and_leaves_no_second_source(tmp_path: Path) -> None:
    rows = gemm_table(tmp_path)
    fit = fit_gpu(tmp_path, HARDWARE, BASE, None)
    true = {"t0_s": 5e-6, "bandwidth_eff": 0.8, "flops_eff": 0.6, "p": 2.0}
    assert values(fit.calibration, "gemm") == pytest.approx(true, rel=1e-3)
    assert fit.calibration.gemm_alternate is None
    assert fit.calibration.host == BASE.host
    assert [(line.name, line.rows) for line in fit.fits] == [("gemm (h_gemm_x.csv)", rows)]
    assert fit.paths == {f"gemm.{name}" for name in true}
    (seen,) = fit.residuals
    assert seen.tokens is not None
    assert (seen.tokens.min(), seen.tokens.max(), seen.context) == (1, 4000, None)
    assert seen.relative == pytest.approx(0, abs=1e-3)
    assert fit.calibration.gemm.t0_s.provenance.note == f"{rows} rows, mean error 0.0%"


def test_fp8_rows_without_an_fp8_peak_are_left_out_with_a_note(tmp_path: Path) -> None:
    gemm_table(tmp_path, "fp8")
    fit = fit_gpu(tmp_path, NO_FP8, BASE, None)
    assert (fit.calibration, fit.notes, fit.fits) == (BASE, (NO_FP8_PEAK,), ())


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
def test_decode_and_prefill_tables_are_halves_of_one_section(tmp_path: Path, dtype: str) -> None:
    """The launch is one, so its time is the decode table's; the compute rate is prefill's."""
    decode, prefill = decode_table(tmp_path, dtype), prefill_table(tmp_path, dtype)
    fit = fit_gpu(tmp_path, HARDWARE, BASE, None)
    section, label = {"bfloat16": ("attention", ""), "fp8": ("attention_fp8", " fp8")}[dtype]
    assert values(fit.calibration, section) == pytest.approx(
        {
            "t0_s": 8e-6,
            "tile_s": 40e-9,
            "bandwidth_eff": 0.7,
            "p": 2.0,
            "prefill_bandwidth_eff": 0.4,
            "flops_eff": 0.5,
        },
        rel=1e-3,
    )
    first, second = fit.residuals
    assert (first.source, second.source) == (f"prefill attention{label}", f"decode attention{label}")
    assert [line.rows for line in fit.fits] == [prefill, len(second.measured_s)]
    assert len(second.measured_s) < decode
    assert first.tokens is not None
    assert second.tokens is not None
    assert first.context is not None
    assert second.context is not None
    assert (first.tokens.max(), first.context.max()) == (8 * 8192, 8192)
    assert (second.tokens.max(), second.context.max()) == (1024, 131_072)
    figure = figures_of(fit.calibration)[f"{section}.t0_s"]
    assert figure.provenance.note.endswith("; rows whose KV cache fits the L2 cache left out")


def test_rows_that_say_they_were_cold_are_all_taken(tmp_path: Path) -> None:
    rows = decode_table(tmp_path, l2="cold", query_len=1)
    fit = fit_gpu(tmp_path, HARDWARE, BASE, None)
    assert fit.fits[0].rows == rows
    assert fit.calibration.attention.tile_s.provenance.note == f"{rows} rows, mean error 0.0%"
    assert fit.calibration.attention.flops_eff == BASE.attention.flops_eff


def test_a_prefill_table_alone_keeps_the_launch_of_decodes(tmp_path: Path) -> None:
    prefill_table(tmp_path)
    fit = fit_gpu(tmp_path, HARDWARE, BASE, None)
    assert fit.calibration.attention.t0_s == BASE.attention.t0_s
    assert fit.paths == {"attention.prefill_bandwidth_eff", "attention.flops_eff"}


def test_layers_and_a_sampler_priced_by_what_they_reach(tmp_path: Path) -> None:
    """The sampler moves its bytes at what elementwise work reaches: the table's 0.9 where there is one."""
    layer_table(tmp_path)
    sampler_table(tmp_path, 0.9)
    fit = fit_gpu(tmp_path, HARDWARE, BASE, None)
    assert values(fit.calibration, "elementwise") == pytest.approx(
        {"t0_s": 7e-6, "bandwidth_eff": 0.9}, rel=1e-3
    )
    sampler = fit.calibration.sampler
    assert sampler.bytes_per_logit.value == pytest.approx(14.0, rel=1e-3)
    assert sampler.step_s == BASE.sampler.step_s
    assert sampler.bytes_per_logit.provenance.note.endswith("; bf16 logits to float32, then argmax")
    assert [line.name for line in fit.fits] == ["elementwise", "sampler"]
    assert [list(each.tokens) for each in fit.residuals if each.tokens is not None] == [list(TOKENS)] * 2


def test_a_sampler_s_table_alone_goes_by_the_base_s_elementwise_work(tmp_path: Path) -> None:
    sampler_table(tmp_path, BASE.elementwise.bandwidth_eff.value)
    found = fit_gpu(tmp_path, HARDWARE, BASE, None).calibration
    assert found.sampler.bytes_per_logit.value == pytest.approx(14.0, rel=1e-3)


def test_a_step_s_rest_is_shared_out_over_its_layers(tmp_path: Path) -> None:
    """32 layers of Llama 3.1 8B, each moving 8 x 4096 + 3 x 14336 + 2 x 40 x 128 bf16 values a token."""
    values_moved = 8 * 4096 + 3 * 14_336 + 2 * 40 * 128
    rest = 32 * 1e3 * (7e-6 + TOKENS * 2 * values_moved / (0.9 * BANDWIDTH))
    parts = {"attention_ms": 1.0, "gemm_ms": 2.0, "logits_ms": 0.5, "total_ms": rest + 3.5, "batch": TOKENS}
    named = {"model": "Meta-Llama-3.1-8B", "gemm_dtype": "bfloat16", "phase": "decode"}
    csv(tmp_path, "h_aic_step_latency_lookup.csv", **named, **parts)
    found = fit_gpu(tmp_path, HARDWARE, BASE, None).calibration
    assert values(found, "elementwise") == pytest.approx({"t0_s": 7e-6, "bandwidth_eff": 0.9}, rel=1e-3)
    layer_table(tmp_path)
    with pytest.raises(InputError, match="both give the elementwise work"):
        fit_gpu(tmp_path, HARDWARE, BASE, None)


def test_all_reduces_are_fitted_by_ranks(tmp_path: Path) -> None:
    sent = 2.0 ** np.arange(16, 30)
    latency = [1e3 * (t0 + np.minimum(sent / 5e10, 6e-6 + sent / 1.5e11)) for t0 in (5e-6, 8e-6)]
    csv(
        tmp_path,
        "h_allreduce_vllm_x.csv",
        backend="vllm_graph",
        num_gpus=np.repeat([2, 4], len(sent)),
        message_size_elements=np.tile(sent / 2, 2),
        latency_ms=np.concatenate(latency),
    )
    fit = fit_gpu(tmp_path, HARDWARE, BASE, None)
    assert fit.calibration.all_reduce.keys() == {2, 4}
    for ranks, t0_s in ((2, 5e-6), (4, 8e-6)):
        true = {"t0_s": t0_s, "one_shot_bytes_per_s": 5e10, "two_shot_s": 6e-6, "bytes_per_s": 1.5e11}
        assert values(fit.calibration, f"all_reduce.{ranks}") == pytest.approx(true, rel=1e-3)
    assert [line.name for line in fit.fits] == ["all-reduce over 2", "all-reduce over 4"]
    assert [each.tokens for each in fit.residuals] == [None, None]


def test_a_figure_at_its_bound_says_so(tmp_path: Path) -> None:
    latency = 1e3 * (7e-6 + TOKENS * 90_000 / (1.2 * BANDWIDTH))  # more than there is
    csv(tmp_path, "h_elementwise_x.csv", num_tokens=TOKENS, bytes_per_token=90_000, latency_ms=latency)
    figure = fit_gpu(tmp_path, HARDWARE, BASE, None).calibration.elementwise.bandwidth_eff
    assert (figure.value, figure.stderr, figure.provenance.kind) == (1.0, None, Kind.FITTED)
    assert figure.provenance.note.endswith("; at its bound, so without a standard error")


def test_an_assumed_figure_that_a_table_leaves_is_not_its_own(tmp_path: Path) -> None:
    """An fp8 cache was not measured before: its prefill is taken from bf16's, and stays open."""
    decode_table(tmp_path, "fp8")
    base = replace(BASE, attention_fp8=None)
    fit = fit_gpu(tmp_path, HARDWARE, base, None)
    assert fit.calibration.attention_fp8 is not None
    taken = fit.calibration.attention_fp8.prefill_bandwidth_eff
    source = BASE.attention.prefill_bandwidth_eff.provenance.source
    note = "bf16's, taken for an fp8 cache"
    assert taken == Figure(BASE.attention.prefill_bandwidth_eff.value, Provenance(Kind.ASSUMED, source, note))
    assert fit.paths == {f"attention_fp8.{name}" for name in ("t0_s", "tile_s", "bandwidth_eff", "p")}


HOST = HostFitResult(
    seconds=dict.fromkeys(
        ("request_s", "request_total_s", "lookup_s", "layer_s", "pass_s:eagle", "pass_s:eagle3",
         "sampling:plain", "sampling:verify"), 1e-5,
    ),
    stderr=dict.fromkeys(
        ("step_s", "request_s", "request_total_s", "lookup_s", "layer_s", "pass_s:eagle", "pass_s:eagle3",
         "sampling:plain", "sampling:verify"), 1e-6,
    ),
    mape=0.02,
    rows=9,
)  # fmt: skip


def vidur_table(folder: Path) -> int:
    """0.9 of the bandwidth, 0.7 of the peak, p = 3, 7 us fixed."""
    tokens = np.array([1, 16, 128, 512, 2048, 8192])
    times = {}
    for name, n, k in (
        ("attn_pre_proj_ms", 10_240, 8192),
        ("attn_post_proj_ms", 8192, 8192),
        ("mlp_up_proj_ms", 57_344, 8192),
        ("mlp_down_proj_ms", 8192, 28_672),
    ):
        memory = 2 * (tokens * k + k * n + tokens * n) / (0.9 * BANDWIDTH)
        compute = 2.0 * tokens * n * k / (0.7 * PEAK)
        times[name] = 1e3 * (7e-6 + np.cbrt(memory**3 + compute**3))
    csv(folder, "h_vidur_linear_ops.csv", model="Llama-2-70b", tp=1, num_tokens=tokens, **times)
    return 4 * len(tokens)


@pytest.mark.parametrize("nearer", ["gemm", "vidur"])
def test_the_source_nearer_to_steps_of_an_engine_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nearer: str
) -> None:
    """The made judge knows the sources by their fixed time; the host costs nothing while it looks."""
    rows = {"gemm": gemm_table(tmp_path), "vidur": vidur_table(tmp_path)}
    t0_s = {"gemm": 5e-6, "vidur": 7e-6}
    hosts = []

    def error(timings: HostTimings, model: LatencyModel) -> float:
        assert (model.model.name, model.drafter, model.tp) == (timings.linear.model, None, 1)
        silent = figures_of(model.calibration)
        assert not any(silent[path].value for path in silent if path.startswith(("host.", "sampler.")))
        own = model.calibration.gemm.t0_s.value == pytest.approx(t0_s[nearer], rel=1e-2)
        return 0.034 if own else 0.08

    def fit_host(timings: HostTimings, model_of: ModelFactory) -> HostFitResult:
        hosts.append(model_of("llama-3.1-8b", "eagle", 1))
        return replace(HOST, seconds=HOST.seconds | {"step_s": len(hosts) * 1e-3}, rows=9 + len(hosts))

    monkeypatch.setattr("kplan.latency.fit_gpu.in_situ_error", error)
    monkeypatch.setattr("kplan.latency.fit_gpu.fit_host", fit_host)
    fit = fit_gpu(tmp_path, HARDWARE, BASE, load_host_timings())
    found = fit.calibration
    assert found.gemm_alternate is not None
    assert found.host_alternate is not None
    (further,) = rows.keys() - {nearer}
    assert found.gemm.t0_s.value == pytest.approx(t0_s[nearer], rel=1e-2)
    assert found.gemm_alternate.t0_s.value == pytest.approx(t0_s[further], rel=1e-2)
    assert found.gemm.t0_s.provenance.note.endswith("; 3.4% from in-engine verification times")
    assert found.gemm_alternate.p.provenance.note.endswith("; 8.0% from in-engine verification times")
    # the host is fitted beside the one that prices, then beside the other
    assert [host.calibration.gemm.t0_s.value for host in hosts] == [
        found.gemm.t0_s.value,
        found.gemm_alternate.t0_s.value,
    ]
    assert (found.host.step_s.value, found.host_alternate.step_s.value) == (1e-3, 2e-3)
    assert found.sampler.step_s.value == 1e-5
    assert hosts[0].drafter is not None
    assert hosts[0].traits == EngineTraits(capture_sizes=(1, 2, 4, 8, 16))
    assert [(line.name, line.rows) for line in fit.fits] == [
        ("gemm (h_gemm_x.csv)", rows["gemm"]),
        ("gemm (h_vidur_linear_ops.csv)", rows["vidur"]),
        ("host", 10),
        ("host beside the second GEMM source", 11),
    ]
    assert "host.exposed_s" not in fit.paths
    assert {"host.step_s", "host_alternate.step_s", "sampler.step_s", "gemm_alternate.p"} <= fit.paths


def test_without_timings_the_collector_s_table_prices(tmp_path: Path) -> None:
    gemm_table(tmp_path)
    vidur_table(tmp_path)
    found = fit_gpu(tmp_path, HARDWARE, BASE, None).calibration
    assert found.gemm_alternate is not None
    assert values(found, "gemm")["t0_s"] == pytest.approx(5e-6, rel=1e-2)
    true = {"t0_s": 7e-6, "bandwidth_eff": 0.9, "flops_eff": 0.7, "p": 3.0}
    assert values(found, "gemm_alternate") == pytest.approx(true, rel=1e-2)
    assert "in-engine" not in found.gemm.t0_s.provenance.note


def test_a_table_that_was_published_names_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer_table(tmp_path)
    path = tmp_path / "h_elementwise_x.csv"
    package = tmp_path / "package"
    (package / "calibrations/published").mkdir(parents=True)
    known = package / "calibrations/published/kernel-tables.yaml"
    known.write_text(f"{file_digest(path)}: collected by somebody\n")
    monkeypatch.setattr("kplan.latency.fit_gpu.files", lambda _: package)
    found = fit_gpu(tmp_path, HARDWARE, BASE, None).calibration.elementwise.t0_s.provenance.source
    assert found == f"h_elementwise_x.csv, blake2b {file_digest(path)}; collected by somebody"
    known.write_text("0123: collected by somebody\n")
    other = fit_gpu(tmp_path, HARDWARE, BASE, None).calibration.elementwise.t0_s.provenance.source
    assert other == f"h_elementwise_x.csv, blake2b {file_digest(path)}"
