"""How an engine launches its steps: captured graphs and host overlap."""

from __future__ import annotations

from dataclasses import dataclass

from kplan.profiles import Drafter, EngineProfile, GraphUnit, Hardware


@dataclass(frozen=True)
class EngineTraits:
    """Launch behaviour that the latency model needs.

    Attributes:
        capture_sizes: captured graph sizes in tokens, ascending; () means every step is eager.
        piecewise: attention runs between captured pieces instead of inside one full graph.
        async_scheduling: the GPU hides the scheduler.
        captured_drafts: a drafter's passes run in captured graphs, not launched one by one.
    """

    capture_sizes: tuple[int, ...] = ()
    piecewise: bool = False
    async_scheduling: bool = True
    captured_drafts: bool = False


def launched_on(hardware: Hardware, traits: EngineTraits) -> EngineTraits:
    """The traits as they hold on ``hardware``: on a CPU all is eager, and one thing after another.

    (vLLM 0.32.0, ``CpuPlatform.check_and_update_config``, turns async scheduling off.)
    """
    return EngineTraits(async_scheduling=False) if hardware.is_host else traits


def engine_traits(
    engine: EngineProfile,
    drafter: Drafter | None,
    max_num_seqs: int,
    max_k: int,
    *,
    dynamic_table: bool = False,
) -> EngineTraits:
    """Traits of ``engine`` when it serves with ``drafter`` (None: speculation off) and K up to ``max_k``.

    vLLM captures token counts up to min(max_num_seqs x (1 + K) x 2, its largest size), and n x (1 + K) for
    every K of a table (``dynamic_table``). An engine that captures by requests gets n x (1 + max_k) and n
    tokens (K = 0).
    """
    k = 0 if drafter is None else max_k
    graphs = engine.graphs
    if graphs.unit is GraphUnit.TOKENS:
        limit = min(max_num_seqs * (1 + k) * 2, graphs.max_size)
        sizes = {size for size in graphs.sizes() if size <= limit}
        if dynamic_table:
            sizes |= {
                n * (1 + each) for each in range(k + 1) for n in graphs.sizes() if n * (1 + each) <= limit
            }
    else:
        running = [n for n in graphs.sizes() if n <= max_num_seqs]
        sizes = {n * (1 + each) for n in running for each in {0, k}}
    method = None if drafter is None else engine.method(drafter)
    return EngineTraits(
        capture_sizes=tuple(sorted(sizes)),
        piecewise=dynamic_table and engine.table_piecewise,
        async_scheduling=engine.async_scheduling and method not in engine.sync_methods,
        captured_drafts=engine.captured_drafts,
    )
