"""A made GPU, its calibration and a small model of round numbers, for sums by hand."""

from __future__ import annotations

from dataclasses import replace

from kplan.latency import LatencyModel
from kplan.profiles import (
    AllReduceFit,
    AttentionFit,
    Calibration,
    Decoder,
    ElementwiseFit,
    GemmFit,
    HostFit,
    Model,
    SamplerFit,
    load_calibration,
    load_hardware,
    load_model,
)
from kplan.provenance import Figure, Kind, Provenance
from tests.latency.settings import EAGER, head

KNOWN = Provenance(Kind.ASSUMED, "test")


def figure(value: float) -> Figure:
    return Figure(value, KNOWN)


GPU = replace(
    load_hardware("h100-sxm"),
    bandwidth_bytes_s=figure(1000.0),
    peak_flops=figure(10_000.0),
    peak_flops_fp8=figure(40_000.0),
    memory_bytes=figure(10e9),
)
GEMM = GemmFit(t0_s=figure(3.0), bandwidth_eff=figure(0.5), flops_eff=figure(0.25), p=figure(2.0))
FP8 = GemmFit(figure(1.0), figure(0.8), figure(0.5), figure(1.0), convert_eff=figure(0.1))
CALIBRATION: Calibration = replace(
    load_calibration("h100-sxm"),
    gemm=GEMM,
    gemm_fp8=FP8,
    gemm_alternate=None,
    host_alternate=None,
    attention=AttentionFit(
        t0_s=figure(7.0),
        tile_s=figure(0.3),
        bandwidth_eff=figure(0.8),
        p=figure(1.5),
        prefill_bandwidth_eff=figure(0.4),
        flops_eff=figure(0.5),
    ),
    attention_fp8=None,
    elementwise=ElementwiseFit(t0_s=figure(2.0), bandwidth_eff=figure(0.5)),
    all_reduce={2: AllReduceFit(figure(1.0), figure(10.0), figure(6.0), figure(40.0))},
    sampler=SamplerFit(figure(0.4), figure(0.6), figure(10.0), figure(20.0)),
    host=HostFit(
        step_s=figure(5.0),
        request_s=figure(0.9),
        exposed_s=figure(0.2),
        verify_request_s=figure(0.35),
        pass_s={"eagle": figure(11.0)},
        layer_s=figure(13.0),
        lookup_request_s=figure(0.11),
        lookup_token_s=figure(0.013),
    ),
)
SMALL = Decoder(layers=3, hidden=8, heads=4, kv_heads=2, head_dim=2, intermediate=12, vocab=20)
MODEL: Model = replace(load_model("llama-3.1-8b"), name="small", decoder=SMALL)


DRAFT = replace(SMALL, layers=1, vocab=30)
EAGLE = head(decoder=DRAFT, fused_hidden=2, fuses_every_pass=True)


def priced(**changed: object) -> LatencyModel:
    return LatencyModel(GPU, MODEL, None, replace(CALIBRATION, **changed), traits=EAGER)  # type: ignore[arg-type]  # passed through
