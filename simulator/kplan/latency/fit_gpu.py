"""Fit the GPU's coefficients from kernel tables: whichever tables are there; the rest stays the base's.

Two tables of GEMM times disagree by up to a third between 65 and 512 tokens, where speculation lives. Steps
timed inside an engine (SpecDecode-Bench's linear model) lie nearer to the slower table, so that one prices
predictions; the other spans the band, with the host times that are fitted beside it. The rule was made with
PR #32374 known, so it is weak evidence: docs/latency.md says what each account explains, and what the data
cannot separate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path

import yaml

from kplan.errors import InputError
from kplan.latency import fit_kernels, fit_tables
from kplan.latency.fit_figures import figures_of, file_source, fitted, with_figures
from kplan.latency.fit_host import ModelFactory, fit_host, in_situ_error
from kplan.latency.fit_kernels import Array, Fit
from kplan.latency.fit_published import host_figures
from kplan.latency.fit_report import FitLine, Residuals
from kplan.latency.model import LatencyModel
from kplan.latency.ops import elementwise_bytes_per_token
from kplan.latency.published import HostTimings
from kplan.latency.traits import EngineTraits
from kplan.profiles import (
    AllReduceFit,
    AttentionFit,
    Calibration,
    Dtype,
    ElementwiseFit,
    GemmFit,
    Hardware,
    load_drafter,
    load_model,
)
from kplan.provenance import Figure, Kind, Provenance, file_digest

CITATIONS = "calibrations/published/kernel-tables.yaml"
GRAPH_SIZES = (1, 2, 4, 8, 16)
"""Captured sizes that matter at batch 1, where the host is fitted."""

NO_FP8_PEAK = "the GPU's profile has no fp8 peak, so fp8 matrices stay without a fit of their own"


@dataclass(frozen=True)
class GpuFit:
    """A calibration with what the tables gave, how well each group fits, and remarks.

    Attributes:
        paths: figures that are fitted or measured now; one that is assumed stays open to other measurements.
    """

    calibration: Calibration
    fits: tuple[FitLine, ...]
    residuals: tuple[Residuals, ...]
    paths: frozenset[str]
    notes: tuple[str, ...] = ()


@dataclass
class _Builder:
    """Collects sections of the calibration as they are fitted."""

    base: Calibration
    sections: dict[str, object] = field(default_factory=dict)
    fits: list[FitLine] = field(default_factory=list)
    residuals: list[Residuals] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, fit: Fit, tokens: Array | None = None, context: Array | None = None) -> None:
        self.fits.append(FitLine(name, fit.rows, fit.mape))
        self.residuals.append(Residuals(name, fit.measured_s, fit.predicted_s, tokens, context))

    def built(self) -> Calibration:
        return replace(self.base, **self.sections)  # type: ignore[arg-type]  # each under its field's name


def fit_gpu(folder: Path, hardware: Hardware, base: Calibration, timings: HostTimings | None) -> GpuFit:
    """Fit what the tables in ``folder`` cover; with ``timings`` of this GPU, its host costs as well.

    Args:
        base: a calibration for this GPU (its own, or a borrowed one), kept where no table says otherwise.

    Raises:
        InputError: a table that is unreadable, too small or blind to a coefficient.
    """
    tables = fit_tables.find_tables(folder)
    sources = {pattern: file_source(path, _citation(path)) for pattern, path in tables.items()}
    builder = _Builder(base)
    _fit_attention(builder, tables, sources, hardware)
    _fit_rest(builder, tables, sources, hardware)
    _fit_gemms(builder, tables, sources, hardware, timings)  # its choice needs the other sections
    if timings is not None:
        host = fit_host(timings, _bare(hardware, builder.built()))
        builder.sections |= host_figures(host, timings.file)
        builder.fits.append(FitLine("host", host.rows, host.mape))
        other = builder.built().alternate()
        if other is not None:
            second = fit_host(timings, _bare(hardware, other))
            builder.sections["host_alternate"] = host_figures(second, timings.file)["host"]
            builder.fits.append(FitLine("host beside the second GEMM source", second.rows, second.mape))
    if fit_tables.SAMPLER in tables:  # after the host's fit, which brings the sampler's fixed times
        _fit_sampler(builder, tables[fit_tables.SAMPLER], sources[fit_tables.SAMPLER], hardware)
    calibration = builder.built()
    before, after = figures_of(base), figures_of(calibration)
    paths = frozenset(
        path
        for path, figure in after.items()
        if before.get(path) is not figure and figure.provenance.kind is not Kind.ASSUMED
    )
    return GpuFit(calibration, tuple(builder.fits), tuple(builder.residuals), paths, tuple(builder.notes))


def _fit_gemms(
    builder: _Builder,
    tables: Mapping[str, Path],
    sources: Mapping[str, str],
    hardware: Hardware,
    timings: HostTimings | None,
) -> None:
    """Of two sources, the one nearest to steps measured inside an engine prices; the other gives the band."""
    gemms: dict[str, Fit] = {}
    if fit_tables.GEMM in tables:
        rows = fit_tables.gemm_rows(tables[fit_tables.GEMM])
        if rows is not None:
            gemms[fit_tables.GEMM] = fit_kernels.fit_gemm(rows, hardware)
            builder.add(f"gemm ({tables[fit_tables.GEMM].name})", gemms[fit_tables.GEMM], rows.m)
        _fit_fp8_gemm(builder, tables[fit_tables.GEMM], sources[fit_tables.GEMM], hardware)
    if fit_tables.VIDUR in tables:
        rows = fit_tables.vidur_rows(tables[fit_tables.VIDUR])
        gemms[fit_tables.VIDUR] = fit_kernels.fit_gemm(rows, hardware)
        builder.add(f"gemm ({tables[fit_tables.VIDUR].name})", gemms[fit_tables.VIDUR], rows.m)
    if not gemms:
        return
    errors: dict[str, float] = {}
    if timings is not None:
        for source, fit in gemms.items():
            calibration = replace(builder.built(), gemm=GemmFit(**_figures(fit, sources[source])))
            model = _bare(hardware, calibration)(timings.linear.model, None, 1)
            errors[source] = in_situ_error(timings, model)
    ranked = sorted(gemms, key=lambda source: errors.get(source, 0.0))
    own, *others = (
        GemmFit(
            **_figures(
                gemms[source],
                sources[source],
                f"{errors[source]:.1%} from in-engine verification times" if errors else "",
            )
        )
        for source in ranked
    )
    builder.sections |= {"gemm": own, "gemm_alternate": others[0] if others else None}


def _fit_fp8_gemm(builder: _Builder, path: Path, source: str, hardware: Hardware) -> None:
    rows = fit_tables.gemm_rows(path, Dtype.FP8)
    if rows is None:
        return
    if hardware.peak_flops_fp8 is None:
        builder.notes.append(NO_FP8_PEAK)
        return
    fit = fit_kernels.fit_gemm(rows, hardware)
    builder.sections["gemm_fp8"] = GemmFit(**_figures(fit, source, "fp8 weights and activations"))
    builder.add("gemm fp8", fit, rows.m)


def _fit_attention(
    builder: _Builder, tables: Mapping[str, Path], sources: Mapping[str, str], hardware: Hardware
) -> None:
    """Decode and prefill tables fit the halves of one section; a missing half stays the base's."""
    for dtype, name, label in (
        (Dtype.BF16, "attention", ""),
        (Dtype.FP8, "attention_fp8", " fp8"),
    ):
        held = getattr(builder.base, name) or _taken_for_fp8(builder.built().attention)
        halves: dict[str, Figure] = {}
        if fit_tables.PREFILL in tables:
            prefill = fit_tables.prefill_rows(tables[fit_tables.PREFILL], dtype)
            if prefill is not None:
                fit = fit_kernels.fit_prefill_attention(prefill, hardware)
                # one launch serves decode and prefill: its fixed time is the decode table's
                halves |= {k: v for k, v in _figures(fit, sources[fit_tables.PREFILL]).items() if k != "t0_s"}
                tokens = prefill.requests * prefill.kv_len
                builder.add(f"prefill attention{label}", fit, tokens, prefill.kv_len)
        if fit_tables.DECODE in tables:
            decode = fit_tables.decode_rows(tables[fit_tables.DECODE], dtype)
            if decode is not None:
                flops_eff = halves.get("flops_eff", held.flops_eff).value
                fit = fit_kernels.fit_decode_attention(decode, hardware, flops_eff)
                note = "" if decode.cold.all() else "rows whose KV cache fits the L2 cache left out"
                halves |= _figures(fit, sources[fit_tables.DECODE], note)
                builder.add(
                    f"decode attention{label}", fit, decode.requests * decode.query_len, decode.kv_len
                )
        if halves:
            section: AttentionFit = replace(held, **halves)
            builder.sections[name] = section


def _taken_for_fp8(fit: AttentionFit) -> AttentionFit:
    """bf16's figures for an fp8 cache, assumed to hold and so without standard errors."""

    def taken(figure: Figure) -> Figure:
        return Figure(
            figure.value, Provenance(Kind.ASSUMED, figure.provenance.source, "bf16's, taken for an fp8 cache")
        )

    return AttentionFit(**{each.name: taken(getattr(fit, each.name)) for each in fields(fit)})


def _fit_rest(
    builder: _Builder, tables: Mapping[str, Path], sources: Mapping[str, str], hardware: Hardware
) -> None:
    if fit_tables.STEPS in tables:
        steps = fit_tables.elementwise_rows(tables[fit_tables.STEPS])
        decoder = load_model("llama-3.1-8b").decoder
        traffic = elementwise_bytes_per_token(decoder, 1) * steps.tokens
        rows = fit_tables.LayerRows(steps.tokens, traffic, steps.seconds / decoder.layers)
        _add_elementwise(builder, rows, sources[fit_tables.STEPS], hardware)
    if fit_tables.ELEMENTWISE in tables:
        rows = fit_tables.layer_rows(tables[fit_tables.ELEMENTWISE])
        _add_elementwise(builder, rows, sources[fit_tables.ELEMENTWISE], hardware)
    if fit_tables.ALL_REDUCE in tables:
        reduce = {
            ranks: fit_kernels.fit_all_reduce(rows)
            for ranks, rows in fit_tables.all_reduce_rows(tables[fit_tables.ALL_REDUCE]).items()
        }
        source = sources[fit_tables.ALL_REDUCE]
        builder.sections["all_reduce"] = {n: AllReduceFit(**_figures(f, source)) for n, f in reduce.items()}
        for ranks, one in reduce.items():
            builder.add(f"all-reduce over {ranks}", one)


def _add_elementwise(builder: _Builder, rows: fit_tables.LayerRows, source: str, hardware: Hardware) -> None:
    if "elementwise" in builder.sections:
        both = f"{fit_tables.STEPS} and {fit_tables.ELEMENTWISE}"
        raise InputError("--tables", both, "both give the elementwise work", "keep one of them")
    fit = fit_kernels.fit_elementwise(rows, hardware)
    builder.sections["elementwise"] = ElementwiseFit(**_figures(fit, source))
    builder.add("elementwise", fit, rows.tokens)


def _fit_sampler(builder: _Builder, path: Path, source: str, hardware: Hardware) -> None:
    """The traffic of the plain sampler; the fixed times are the host's fit's, or the base's."""
    held = builder.built()
    rows = fit_tables.sampler_rows(path)
    reached = hardware.bandwidth_bytes_s.value * held.elementwise.bandwidth_eff.value
    fit = fit_kernels.fit_sampler(rows, reached)
    traffic = _figures(fit, source, "bf16 logits to float32, then argmax")["bytes_per_logit"]
    builder.sections["sampler"] = replace(held.sampler, bytes_per_logit=traffic)
    builder.add("sampler", fit, rows.rows)


def _figures(fit: Fit, source: str, note: str = "") -> dict[str, Figure]:
    told = f"{fit.rows} rows, mean error {fit.mape:.1%}" + (f"; {note}" if note else "")
    return {
        name: fitted(
            value,
            source,
            fit.stderr.get(name),
            told if name in fit.stderr else f"{told}; at its bound, so without a standard error",
        )
        for name, value in fit.coefficients.items()
    }


def _citation(path: Path) -> str:
    """Where a table with these very bytes was published; "" for one that is not known."""
    known = yaml.safe_load((files("kplan_profiles") / CITATIONS).read_text(encoding="utf-8"))
    return str(known.get(file_digest(path), ""))


def _bare(hardware: Hardware, calibration: Calibration) -> ModelFactory:
    """Models that price the GPU alone: host and sampler cost nothing."""
    silent = with_figures(
        calibration,
        {
            path: replace(figure, value=0.0)
            for path, figure in figures_of(calibration).items()
            if path.startswith(("host.", "sampler."))
        },
    )
    return cache(partial(_bare_model, hardware, silent))


def _bare_model(
    hardware: Hardware, calibration: Calibration, model: str, proposer: str | None, tp: int
) -> LatencyModel:
    target = load_model(model)
    drafter = None if proposer is None else load_drafter(proposer, target)
    return LatencyModel(hardware, target, drafter, calibration, tp, EngineTraits(capture_sizes=GRAPH_SIZES))
