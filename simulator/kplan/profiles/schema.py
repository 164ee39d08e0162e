"""The YAML files of profiles as pydantic schemas: the edge where a file becomes frozen dataclasses.

A figure is written ``{value: 3.67e-6, kind: fitted, source: KEY, stderr: 2.6e-8}``; ``source`` names an
entry of the file's ``sources`` map, so a long citation is written once.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kplan.errors import InputError
from kplan.profiles.drafter import DrafterKind
from kplan.profiles.engine import GraphUnit
from kplan.provenance import Figure, Kind, Provenance

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Entry(BaseModel):
    """A record that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FigureEntry(Entry):
    """A number with its source key."""

    value: Annotated[float, Field(ge=0)]
    kind: Kind
    source: str
    stderr: Annotated[float, Field(ge=0)] | None = None
    note: str = ""

    def figure(self, sources: dict[str, str]) -> Figure:
        """The dataclass; raises InputError when the source key is not in ``sources``."""
        if self.source not in sources:
            raise InputError("figure source", self.source, f"known sources: {', '.join(sorted(sources))}")
        return Figure(self.value, Provenance(self.kind, sources[self.source], self.note), self.stderr)


class ProvenanceEntry(Entry):
    """Source of a whole file."""

    kind: Kind
    source: str
    note: str = ""

    def provenance(self) -> Provenance:
        return Provenance(self.kind, self.source, self.note)


class HardwareFile(Entry):
    """hardware/NAME.yaml"""

    name: str
    summary: str
    memory_bytes: FigureEntry
    bandwidth_bytes_s: FigureEntry
    peak_flops: FigureEntry
    sources: dict[str, str]
    provenance: ProvenanceEntry


class DecoderEntry(Entry):
    """Architecture of a dense decoder."""

    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count
    attention_inputs: Count = 1


class ModelFile(Entry):
    """models/NAME.yaml"""

    name: str
    hf_id: str
    summary: str
    decoder: DecoderEntry
    tied_embeddings: bool
    weight_bytes_per_param: Positive = 2.0
    kv_bytes_per_value: Positive = 2.0
    provenance: ProvenanceEntry


class DrafterFile(Entry):
    """drafters/NAME.yaml"""

    name: str
    proposer: str
    kind: DrafterKind
    hf_id: str | None = None
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    engine_methods: dict[str, str]
    summary: str
    decoder: DecoderEntry | None = None
    fused_hidden: Annotated[int, Field(ge=0)] = 0
    fuses_every_pass: bool = False
    own_embedding: bool = False
    own_head: bool = False
    weight_bytes_per_param: Positive = 2.0
    kv_bytes_per_value: Positive = 2.0
    provenance: ProvenanceEntry


class TierEntry(Entry):
    min_memory_gb: Annotated[float, Field(ge=0)]
    max_num_batched_tokens: Count
    max_num_seqs: Count


class GraphEntry(Entry):
    unit: GraphUnit
    small: tuple[Count, ...]
    ranges: tuple[tuple[Count, Count, Count], ...]
    max_size: Count


class EngineFile(Entry):
    """engines/NAME.yaml"""

    name: str
    version: str
    summary: str
    block_size: Count
    tiers: Annotated[tuple[TierEntry, ...], Field(min_length=1)]
    max_num_seqs_with_drafts: Count | None
    graphs: GraphEntry
    async_scheduling: bool
    sync_methods: tuple[str, ...]
    table_methods: tuple[str, ...]
    table_piecewise: bool
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    provenance: ProvenanceEntry


class GemmEntry(Entry):
    t0_s: FigureEntry
    bandwidth_eff: FigureEntry
    flops_eff: FigureEntry
    p: FigureEntry


class AttentionEntry(Entry):
    t0_s: FigureEntry
    tile_s: FigureEntry
    bandwidth_eff: FigureEntry
    p: FigureEntry
    prefill_bandwidth_eff: FigureEntry
    flops_eff: FigureEntry


class ElementwiseEntry(Entry):
    t0_s: FigureEntry
    bandwidth_eff: FigureEntry


class AllReduceEntry(Entry):
    t0_s: FigureEntry
    bytes_per_s: FigureEntry


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


class CalibrationFile(Entry):
    """calibrations/HARDWARE.yaml"""

    hardware: str
    summary: str
    gemm: GemmEntry
    gemm_alternate: GemmEntry | None = None
    attention: AttentionEntry
    elementwise: ElementwiseEntry
    all_reduce: dict[int, AllReduceEntry]
    sampler: SamplerEntry
    host: HostEntry
    sources: dict[str, str]
    provenance: ProvenanceEntry
