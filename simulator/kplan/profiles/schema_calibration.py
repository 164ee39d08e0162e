"""calibrations/HARDWARE.yaml as a pydantic schema; figures are written as in :mod:`kplan.profiles.schema`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kplan.profiles.schema import Entry, FigureEntry, NormEntry, ProvenanceEntry, RateEntry, ShareEntry


class GemmEntry(Entry):
    t0_s: FigureEntry
    bandwidth_eff: ShareEntry
    flops_eff: ShareEntry
    p: NormEntry
    convert_eff: ShareEntry | None = None


class AttentionEntry(Entry):
    t0_s: FigureEntry
    tile_s: FigureEntry
    bandwidth_eff: ShareEntry
    p: NormEntry
    prefill_bandwidth_eff: ShareEntry
    flops_eff: ShareEntry


class ElementwiseEntry(Entry):
    t0_s: FigureEntry
    bandwidth_eff: ShareEntry


class AllReduceEntry(Entry):
    t0_s: FigureEntry
    one_shot_bytes_per_s: RateEntry
    two_shot_s: FigureEntry
    bytes_per_s: RateEntry


class SamplerEntry(Entry):
    step_s: FigureEntry
    verify_step_s: FigureEntry
    bytes_per_logit: FigureEntry
    verify_bytes_per_logit: FigureEntry


class HostEntry(Entry):
    step_s: FigureEntry
    request_s: FigureEntry
    exposed_s: FigureEntry
    verify_request_s: FigureEntry
    pass_s: dict[str, FigureEntry]
    layer_s: FigureEntry
    lookup_request_s: FigureEntry
    lookup_token_s: FigureEntry
    draft_step_s: FigureEntry | None = None


class CalibrationFile(Entry):
    """calibrations/HARDWARE.yaml"""

    hardware: str
    summary: str
    gemm: GemmEntry
    gemm_alternate: GemmEntry | None = None
    gemm_fp8: GemmEntry | None = None
    attention: AttentionEntry
    attention_fp8: AttentionEntry | None = None
    elementwise: ElementwiseEntry
    all_reduce: dict[Annotated[int, Field(ge=2)], AllReduceEntry]
    sampler: SamplerEntry
    host: HostEntry
    host_alternate: HostEntry | None = None
    sources: dict[str, str]
    provenance: ProvenanceEntry
    versions: dict[str, str] = Field(default_factory=dict)
