"""What an inference engine does by default: limits, blocks, captured graphs, scheduling overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from kplan.profiles.drafter import Drafter
from kplan.profiles.hardware import Hardware
from kplan.provenance import Provenance

GB = 1e9


class GraphUnit(StrEnum):
    """What a captured CUDA graph is sized by."""

    TOKENS = "tokens"
    REQUESTS = "requests"


@dataclass(frozen=True)
class MemoryTier:
    """Default limits on GPUs with at least ``min_memory_gb`` (1e9 bytes)."""

    min_memory_gb: float
    max_num_batched_tokens: int
    max_num_seqs: int


@dataclass(frozen=True)
class GraphSizes:
    """Sizes for which decode graphs are captured.

    Attributes:
        unit: tokens, or requests (then a graph of n requests holds n (K + 1) tokens).
        small: sizes listed one by one.
        ranges: (first, last, step), both ends included.
        max_size: nothing above is captured.
    """

    unit: GraphUnit
    small: tuple[int, ...]
    ranges: tuple[tuple[int, int, int], ...]
    max_size: int

    def sizes(self) -> tuple[int, ...]:
        """Every captured size, ascending, before the limit of running requests."""
        listed = set(self.small)
        for first, last, step in self.ranges:
            listed.update(range(first, last + 1, step))
        return tuple(size for size in sorted(listed) if size <= self.max_size)


@dataclass(frozen=True)
class EngineProfile:
    """One engine release.

    Attributes:
        name: ``vllm`` or ``sglang``.
        version: release that the facts were read from.
        summary: one line for listings.
        block_size: tokens of a KV block.
        tiers: default limits by device memory, largest first.
        small_tier_hardware: GPUs that get the smallest tier whatever their memory.
        max_num_seqs_with_drafts: running requests when speculation is on; None means no change.
        graphs: captured decode graphs.
        async_scheduling: the host prepares a step while the GPU runs the one before.
        sync_methods: engine methods that switch async scheduling off.
        table_methods: engine methods for which K may change with the batch.
        table_piecewise: a table of K by batch downgrades full graphs to piecewise ones.
        captured_drafts: a drafter's passes run in captured graphs too, so the host launches none of them.
        gpu_memory_utilization: default share of device memory the engine takes.
        provenance: source of the facts.
    """

    name: str
    version: str
    summary: str
    block_size: int
    tiers: tuple[MemoryTier, ...]
    max_num_seqs_with_drafts: int | None
    graphs: GraphSizes
    async_scheduling: bool
    sync_methods: frozenset[str]
    table_methods: frozenset[str]
    table_piecewise: bool
    gpu_memory_utilization: float
    provenance: Provenance
    captured_drafts: bool = False
    small_tier_hardware: frozenset[str] = frozenset()

    def limits(self, hardware: Hardware, *, drafting: bool) -> tuple[int, int]:
        """Default (max_num_batched_tokens, max_num_seqs) on this GPU; ``drafting``: with speculation."""
        memory_gb = hardware.memory_bytes.value / GB
        fitting = [tier for tier in self.tiers if memory_gb >= tier.min_memory_gb]
        if hardware.name in self.small_tier_hardware:
            fitting = []
        tier = fitting[0] if fitting else self.tiers[-1]
        seqs = tier.max_num_seqs
        if drafting and self.max_num_seqs_with_drafts is not None:
            seqs = min(seqs, self.max_num_seqs_with_drafts)
        return tier.max_num_batched_tokens, seqs

    def eager(self) -> EngineProfile:
        """The engine without captured graphs."""
        return replace(self, graphs=replace(self.graphs, small=(), ranges=()), captured_drafts=False)

    def method(self, drafter: Drafter) -> str | None:
        """The engine's name for this drafter's method; None when the engine has none."""
        methods: Mapping[str, str] = drafter.engine_methods
        return methods.get(self.name)
