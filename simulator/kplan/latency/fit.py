"""Fit a whole calibration: kernel tables give the GPU, published timings give the host.

The result is the document of a calibration YAML: every figure with its kind, source, rows and standard error.

What the sources can tell. Two tables of GEMM times disagree by up to a third between 65 and 512 tokens,
where speculation lives. Steps timed inside an engine (SpecDecode-Bench's linear model) lie nearer to the
slower table, so that one prices predictions and the other spans the band. Against vLLM PR #32374, of
which nothing is fitted (prompts of 100 and outputs of 256 tokens assumed), the faster table leaves 40 to
46 us per request and verifying step at batch 64 to 256 and 12 us per request without speculation at 256,
which a cost of speculation alone could not mend; the slower one leaves 6 to 18 us and 3 us.

That comparison is weak evidence. It was not blind: both tables were compared with PR #32374 before the
in-engine model was made the rule that chooses between them. And it hangs on the lengths, which are not
published: with prompts of 150 and outputs that vary around 400 tokens, the faster table is nearer
without speculation (2.7% against 6.8% mean error), the slower one with it (3.1% against 11.1%).

What cannot be told apart: GEMM efficiency in that range from sampling dearer than greedy, since both
grow with the rows of a step; a fixed cost per verifying step from a longer host time per drafter pass;
scheduling from verification in the host's growth per request.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from kplan.latency import fit_kernels, fit_tables
from kplan.latency.fit_host import HostFitResult, ModelFactory, fit_host, in_situ_error
from kplan.latency.fit_kernels import Fit
from kplan.latency.model import LatencyModel
from kplan.latency.published import HostTimings
from kplan.latency.traits import EngineTraits
from kplan.profiles import Calibration, Hardware, load_drafter, load_model
from kplan.profiles.convert import calibration as from_file
from kplan.profiles.schema import CalibrationFile
from kplan.provenance import Kind

DIGITS = 6
GRAPH_SIZES = (1, 2, 4, 8, 16)
"""Captured sizes that matter at batch 1, where the host is fitted."""

ASSUMED_EXPOSED_S = 1e-4
"""Gap between steps when the GPU hides the scheduler."""

ASSUMED_LOOKUP_CONTEXT = 500
"""Tokens per request behind the n-gram bars of the published breakdown, which does not state them."""

LOOKUP_TOKEN_S = 1.13e-9
"""Measured matching time per context token (see SOURCES, lookup-run)."""

SOURCES = {
    "aic": "ai-dynamo/aiconfigurator 095f58a, H100 SXM, vLLM 0.24.0 kernel tables (Apache-2.0)",
    "aic-steps": "aiconfigurator-core 0.12.0 step lookup for vLLM 0.24.0, interpolated from kernel tables",
    "vidur": "microsoft/vidur 7d47513, compute profiles of an H100 DGX, Llama-2-70b at TP 1 to 8 (MIT)",
    "vllm-timings": "vLLM issue #20780; SpecDecode-Bench (arXiv:2601.11580) Fig. 4 and predictor.py, batch 1",
    "vllm-breakdown": "SpecDecode-Bench (arXiv:2601.11580) Fig. 4, batch 1, 64 and 128",
    "traffic-estimate": "estimate of what a greedy sampler must move per logit; no code was read",
    "lookup-run": "own Knuth-Morris-Pratt sketch in numba, random tokens, server CPU; not vLLM's code",
    "judgement": "no public measurement found",
}


@dataclass(frozen=True)
class FitReport:
    """What was fitted: one line per group for the terminal, and the YAML document."""

    document: Mapping[str, Any]
    groups: Mapping[str, tuple[int, float]]

    def calibration(self) -> Calibration:
        return from_file(CalibrationFile.model_validate(self.document))


def fit_calibration(folder: Path, hardware: Hardware, timings: HostTimings) -> FitReport:
    """Fit every coefficient of ``hardware`` from the tables in ``folder`` and the published ``timings``.

    Raises InputError when a table is missing, too small or blind to a coefficient.
    """
    gemms = {
        "aic": fit_kernels.fit_gemm(fit_tables.gemm_rows(folder), hardware),
        "vidur": fit_kernels.fit_gemm(fit_tables.vidur_rows(folder), hardware),
    }
    decode = fit_kernels.fit_decode_attention(fit_tables.decode_rows(folder), hardware)
    prefill = fit_kernels.fit_prefill_attention(fit_tables.prefill_rows(folder), hardware)
    elementwise = fit_kernels.fit_elementwise(
        fit_tables.elementwise_rows(folder), hardware, load_model("llama-3.1-8b").decoder
    )
    reduce = {n: fit_kernels.fit_all_reduce(fit_tables.all_reduce_rows(folder, n)) for n in (2, 4, 8)}

    def bare(document: Mapping[str, Any]) -> ModelFactory:
        calibration = from_file(CalibrationFile.model_validate(document))
        return cache(partial(_bare_model, hardware, calibration))

    document: dict[str, Any] = {
        "hardware": hardware.name,
        "summary": "bf16: GEMM and attention from kernel tables, host costs from vLLM 0.9 to 0.11 timings",
        **_gemm_entries(gemms, None),
        "attention": {
            **_entries(decode, "aic", "rows whose KV cache fits the L2 cache left out"),
            **{k: v for k, v in _entries(prefill, "aic").items() if k != "t0_s"},
        },
        "elementwise": _entries(elementwise, "aic-steps"),
        "all_reduce": {n: _entries(fit, "aic") for n, fit in reduce.items()},
        **_host_entries(None),
        "sources": SOURCES,
        "provenance": {
            "kind": Kind.FITTED.value,
            "source": "kplan calibrate, kernel tables and published timings",
            "note": "regenerate with `kplan calibrate --tables DIR --out FILE`; each figure names its source",
        },
    }
    errors = {
        source: in_situ_error(
            timings, bare(document | _gemm_entries({source: gemm}, None))("llama-3.1-8b", None, 1)
        )
        for source, gemm in gemms.items()
    }
    document |= _gemm_entries(gemms, errors)
    host = fit_host(timings, bare(document))
    document |= _host_entries(host)
    kernels = {
        **{f"gemm ({source})": fit for source, fit in gemms.items()},
        "decode attention": decode,
        "prefill attention": prefill,
        "elementwise": elementwise,
        **{f"all-reduce over {n}": fit for n, fit in reduce.items()},
    }
    groups = {name: (fit.rows, fit.mape) for name, fit in kernels.items()} | {"host": (host.rows, host.mape)}
    return FitReport(document, groups)


def write_calibration(document: Mapping[str, Any], path: Path) -> None:
    """Write the YAML atomically."""
    text = yaml.safe_dump(dict(document), sort_keys=False, width=110, allow_unicode=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _bare_model(
    hardware: Hardware, calibration: Calibration, model: str, proposer: str | None, tp: int
) -> LatencyModel:
    target = load_model(model)
    drafter = None if proposer is None else load_drafter(proposer, target)
    return LatencyModel(hardware, target, drafter, calibration, tp, EngineTraits(capture_sizes=GRAPH_SIZES))


def _gemm_entries(gemms: Mapping[str, Fit], errors: Mapping[str, float] | None) -> dict[str, Any]:
    """The source nearest to steps measured inside an engine prices predictions; the next gives the band."""
    ranked = sorted(gemms, key=lambda source: errors[source] if errors else 0.0)
    entries = {
        source: _entries(
            gemms[source], source, f"{errors[source]:.1%} from in-engine verification times" if errors else ""
        )
        for source in ranked
    }
    own, *others = (entries[source] for source in ranked)
    return {"gemm": own, "gemm_alternate": others[0] if others else None}


def _entries(fit: Fit, source: str, note: str = "") -> dict[str, dict[str, Any]]:
    told = f"{fit.rows} rows, mean error {fit.mape:.1%}" + (f"; {note}" if note else "")
    return {
        name: _figure(
            value,
            Kind.FITTED,
            source,
            fit.stderr.get(name),
            told if name in fit.stderr else f"{told}; at its bound, so without a standard error",
        )
        for name, value in fit.coefficients.items()
    }


def _figure(
    value: float, kind: Kind, source: str, stderr: float | None = None, note: str = ""
) -> dict[str, Any]:
    entry: dict[str, Any] = {"value": _short(value), "kind": kind.value, "source": source}
    if stderr is not None:
        entry["stderr"] = _short(stderr)
    if note:
        entry["note"] = note
    return entry


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _host_entries(host: HostFitResult | None) -> dict[str, Any]:
    """Sampler and host sections; all host times 0 when ``host`` is None (to price the GPU alone)."""

    def fitted(name: str, source: str, note: str = "", scale: float = 1.0) -> dict[str, Any]:
        if host is None:
            return _figure(0.0, Kind.FITTED, source)
        return _figure(host.seconds[name] * scale, Kind.FITTED, source, host.stderr[name] * scale, note)

    def assumed(value: float, source: str, note: str) -> dict[str, Any]:
        return _figure(0.0 if host is None else value, Kind.ASSUMED, source, None, note)

    half = 0.5
    lookup = (
        0.0 if host is None else max(0.0, host.seconds["lookup_s"] - LOOKUP_TOKEN_S * ASSUMED_LOOKUP_CONTEXT)
    )
    return {
        "sampler": {
            "step_s": fitted("sampling:plain", "vllm-breakdown", "batch 1"),
            "verify_step_s": fitted("sampling:verify", "vllm-breakdown", "batch 1, greedy"),
            "bytes_per_logit": assumed(
                10.0, "traffic-estimate", "to float32 (2 read, 4 written), argmax (4 read)"
            ),
            "verify_bytes_per_logit": assumed(
                18.0, "traffic-estimate", "as above, and target and bonus rows gathered (4 read, 4 written)"
            ),
        },
        "host": {
            "step_s": fitted("step_s", "vllm-timings"),
            "request_s": fitted(
                "request_total_s",
                "vllm-breakdown",
                "half of the growth seen under speculation; the breakdown cannot tell scheduling from "
                "verification, so any share from none to all of it is compatible",
                half,
            ),
            "exposed_s": assumed(
                ASSUMED_EXPOSED_S,
                "judgement",
                "gap between steps under async scheduling, 0 to 0.3 ms plausible; PR #32374 was known",
            ),
            "verify_request_s": fitted(
                "request_total_s", "vllm-breakdown", "the other half of that growth", half
            ),
            "pass_s": {
                "eagle": fitted("pass_s:eagle", "vllm-timings"),
                "eagle3": fitted(
                    "pass_s:eagle3",
                    "vllm-timings",
                    "the sources disagree: 0.65 ms in Fig. 4, 1.0 ms in #20780",
                ),
            },
            "layer_s": fitted("layer_s", "vllm-timings", "draft models of 16 and 28 layers, K = 3"),
            "lookup_request_s": _figure(
                lookup,
                Kind.FITTED,
                "vllm-breakdown",
                None,
                "what the matching of 500 tokens leaves of the bar",
            ),
            "lookup_token_s": _figure(
                0.0 if host is None else LOOKUP_TOKEN_S,
                Kind.MEASURED,
                "lookup-run",
                None,
                "not on an H100 host",
            ),
        },
    }
