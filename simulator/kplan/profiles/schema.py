"""The YAML files of profiles as pydantic schemas: the edge where a file becomes frozen dataclasses.

A figure is written ``{value: 3.67e-6, kind: fitted, source: KEY, stderr: 2.6e-8}``; ``source`` names an
entry of the file's ``sources`` map, so a long citation is written once.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from kplan.config.record import Record
from kplan.config.scenario import MAX_DRAFTS, MAX_SEATS, MAX_TOKENS
from kplan.errors import InputError
from kplan.profiles.architecture import Decoder, LatentAttention, MixtureOfExperts, SlidingWindow
from kplan.profiles.drafter import DrafterKind
from kplan.profiles.dtype import Dtype
from kplan.profiles.engine import GraphUnit
from kplan.profiles.hf_fields import LARGEST, LAYERS
from kplan.provenance import Figure, Kind, Provenance

LEAST_RATE, MOST_RATE = 1e3, 1e21
"""Bytes, bytes/s and FLOP/s: from a thousandth of a slow disk's to far above any machine's. Beyond these the
seconds of a step are no time that a server could take, and their powers overflow."""
LEAST_SHARE = 1e-6
MOST_NORM = 100.0
"""At p = 100 the sum of two times exceeds the longer by less than 0.7%: more says nothing."""
MOST_FIGURE = 1e6
"""Seconds, or bytes per logit: eleven days of one launch."""

Count = Annotated[int, Field(ge=1, le=LARGEST)]
OrNone = Annotated[int, Field(ge=0, le=LARGEST)]
Layers = Annotated[int, Field(ge=1, le=LAYERS)]


class Entry(Record):
    """A part of a profile."""


class FigureEntry(Entry):
    """A number with its source key."""

    value: Annotated[float, Field(ge=0, le=MOST_FIGURE)]
    kind: Kind
    source: str
    stderr: Annotated[float, Field(ge=0, le=MOST_RATE)] | None = None
    note: str = ""

    def figure(self, sources: dict[str, str]) -> Figure:
        """The dataclass; raises InputError when the source key is not in ``sources``."""
        if self.source not in sources:
            known = ", ".join(sorted(sources)) or "none"
            raise InputError("figure source", self.source, f"known sources: {known}", "add it to the sources")
        return Figure(self.value, Provenance(self.kind, sources[self.source], self.note), self.stderr)


class RateEntry(FigureEntry):
    """A number that something is divided by."""

    value: Annotated[float, Field(ge=LEAST_RATE, le=MOST_RATE)]


class ShareEntry(FigureEntry):
    """A share of a peak that the hardware's profile states."""

    value: Annotated[float, Field(ge=LEAST_SHARE, le=1)]


class NormEntry(FigureEntry):
    """The p that two times are joined with: 1 adds them, a large one takes the longer."""

    value: Annotated[float, Field(ge=1, le=MOST_NORM)]


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
    memory_bytes: RateEntry
    bandwidth_bytes_s: RateEntry
    peak_flops: RateEntry
    peak_flops_fp8: RateEntry | None = None
    link_bytes_s: RateEntry | None = None
    is_host: bool = False
    sources: dict[str, str]
    provenance: ProvenanceEntry


class LatentEntry(Entry):
    q_rank: OrNone
    kv_rank: Count
    rope_dim: Count
    nope_dim: Count
    v_dim: Count


class WindowEntry(Entry):
    tokens: Count
    layers: Layers


class ExpertsEntry(Entry):
    experts: Count
    active: Count
    intermediate: Count
    shared_intermediate: OrNone = 0
    dense_layers: OrNone = 0


class DecoderEntry(Entry):
    """Architecture of a decoder."""

    layers: Layers
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    intermediate: Count
    vocab: Count
    attention_inputs: Count = 1
    latent: LatentEntry | None = None
    window: WindowEntry | None = None
    moe: ExpertsEntry | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.window is not None and self.window.layers > self.layers:
            raise ValueError(f"window.layers is {self.window.layers}, but there are {self.layers} layers")
        if self.moe is not None:
            if self.moe.active > self.moe.experts:
                raise ValueError(f"moe.active is {self.moe.active}, but there are {self.moe.experts} experts")
            if self.moe.dense_layers >= self.layers:
                raise ValueError(f"moe.dense_layers must leave a routed layer of {self.layers}")
        return self

    def decoder(self) -> Decoder:
        return Decoder(
            **self.model_dump(exclude={"latent", "window", "moe"}),
            latent=None if self.latent is None else LatentAttention(**self.latent.model_dump()),
            window=None if self.window is None else SlidingWindow(**self.window.model_dump()),
            moe=None if self.moe is None else MixtureOfExperts(**self.moe.model_dump()),
        )


class ModelFile(Entry):
    """models/NAME.yaml"""

    name: str
    hf_id: str
    summary: str
    decoder: DecoderEntry
    tied_embeddings: bool
    weight_dtype: Dtype = Dtype.BF16
    kv_dtype: Dtype = Dtype.BF16
    mtp_layers: Annotated[int, Field(ge=0, le=LAYERS)] = 0
    max_context: Count | None = None
    provenance: ProvenanceEntry


Drafts = Annotated[int, Field(ge=1, le=MAX_DRAFTS)]


class TreeEntry(Entry):
    depth: Drafts
    topk: Count
    verified: Drafts

    @model_validator(mode="after")
    def _drafted(self) -> Self:
        pool = self.topk + (self.depth - 1) * self.topk**2
        if self.verified > pool:
            raise ValueError(f"{self.verified} verified of the {pool} nodes that it drafts")
        return self


class LayerEntry(Entry):
    """Decoder layers of a head at the width of whatever target it drafts for.

    ``vocab`` is that of a head of its own; ``mtp`` takes the target's last layer as it is, routed or not.
    """

    vocab: Count | None = None
    attention_inputs: Count = 1
    mtp: bool = False


class DrafterFile(Entry):
    """drafters/NAME.yaml; its architecture: ``decoder``, ``layer``, or another proposer's ``head``."""

    name: str
    proposer: str
    kind: DrafterKind
    hf_id: str | None = None
    targets: Annotated[tuple[str, ...], Field(min_length=1)]
    engine_methods: dict[str, str]
    summary: str
    decoder: DecoderEntry | None = None
    layer: LayerEntry | None = None
    head: str | None = None
    fused_hidden: Annotated[int, Field(ge=0, le=LAYERS)] = 0
    fuses_every_pass: bool = False
    own_embedding: bool = False
    own_head: bool = False
    weight_dtype: Dtype = Dtype.BF16
    kv_dtype: Dtype = Dtype.BF16
    tree: TreeEntry | None = None
    kv_budget: Count | None = None
    provenance: ProvenanceEntry

    @model_validator(mode="after")
    def _one_architecture(self) -> Self:
        own = self.kind not in (DrafterKind.LOOKUP, DrafterKind.SELF)
        given = [key for key in ("decoder", "layer", "head") if getattr(self, key) is not None]
        if len(given) != int(own):
            needed = "exactly one of decoder, layer and head" if own else "no decoder, layer or head"
            raise ValueError(f"a drafter of kind {self.kind} has {needed}, not {', '.join(given) or 'none'}")
        if (self.kind is DrafterKind.SELF) != (self.kv_budget is not None):
            raise ValueError("kv_budget goes with kind self")
        return self


Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Seats = Annotated[int, Field(ge=1, le=MAX_SEATS)]


class TierEntry(Entry):
    min_memory_gb: Annotated[float, Field(ge=0, le=1e9)]
    max_num_batched_tokens: Tokens
    max_num_seqs: Seats


class GraphEntry(Entry):
    unit: GraphUnit
    small: tuple[Tokens, ...]
    ranges: tuple[tuple[Tokens, Tokens, Tokens], ...]
    max_size: Tokens


class EngineFile(Entry):
    """engines/NAME.yaml"""

    name: str
    version: str
    summary: str
    block_size: Tokens
    tiers: Annotated[tuple[TierEntry, ...], Field(min_length=1)]
    small_tier_hardware: tuple[str, ...] = ()
    max_num_seqs_with_drafts: Seats | None
    graphs: GraphEntry
    async_scheduling: bool
    sync_methods: tuple[str, ...]
    table_methods: tuple[str, ...]
    table_piecewise: bool
    captured_drafts: bool = False
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    provenance: ProvenanceEntry
