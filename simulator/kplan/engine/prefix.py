"""Prefix cache: stretches of KV that stay when their requests are gone, and are found again by the next.

Beginnings are known in units (see ``Prefix``). A unit is kept from the moment that a request has scheduled
all of it, whoever computes it first; requests that hold it share its blocks. Units that nobody holds lie in
a ring, least recently used first, and give way when blocks are needed: vLLM's ``BlockPool`` at the units'
grain.

``Machine.unit_state`` has one row per unit and one, the last, as the ring's anchor. Column HOLDERS is 0 when
the unit is not kept, else 1 + the requests that hold it; BEFORE and AFTER link the ring.
"""

from __future__ import annotations

from kplan.engine.state import CACHED, FREE_BLOCKS, Limits, Machine, Requests
from kplan.jit import bare

HOLDERS = 0
BEFORE = 1
AFTER = 2


@bare
def _unlink(m: Machine, unit: int) -> None:
    state = m.unit_state
    before, after = state[unit, BEFORE], state[unit, AFTER]
    state[before, AFTER] = after
    state[after, BEFORE] = before
    m.counters[CACHED] -= 1


@bare
def _link_newest(m: Machine, unit: int) -> None:
    state = m.unit_state
    anchor = len(state) - 1
    newest = state[anchor, BEFORE]
    state[newest, AFTER] = unit
    state[unit, BEFORE] = newest
    state[unit, AFTER] = anchor
    state[anchor, BEFORE] = unit
    m.counters[CACHED] += 1


@bare
def make_room(m: Machine, limits: Limits) -> None:
    """Drop the least recently used units until the blocks that are free hold those still kept."""
    unit_blocks = limits.unit_tokens // limits.block_tokens
    while m.counters[CACHED] * unit_blocks > m.counters[FREE_BLOCKS]:
        oldest = m.unit_state[len(m.unit_state) - 1, AFTER]
        _unlink(m, oldest)
        m.unit_state[oldest, HOLDERS] = 0


@bare
def found(req: Requests, m: Machine, limits: Limits, r: int, whole: int) -> int:
    """Units that request ``r`` finds; of ``whole`` tokens at least one is left to compute."""
    at, n = req[r].unit_at, 0
    most = min(req[r].units, (whole - 1) // limits.unit_tokens)
    while n < most and m.unit_state[m.units[at + n], HOLDERS] > 0:
        n += 1
    return n


@bare
def blocks_to_revive(req: Requests, m: Machine, limits: Limits, r: int, n: int) -> int:
    """Free blocks that the first ``n`` units of ``r``, kept by nobody now, would take back."""
    at, idle = req[r].unit_at, 0
    for j in range(at, at + n):
        if m.unit_state[m.units[j], HOLDERS] == 1:
            idle += 1
    return idle * (limits.unit_tokens // limits.block_tokens)


@bare
def hold(req: Requests, m: Machine, limits: Limits, r: int, n: int) -> None:
    """Let ``r`` share the first ``n`` units, which are kept."""
    unit_blocks = limits.unit_tokens // limits.block_tokens
    at = req[r].unit_at
    for j in range(at, at + n):
        unit = m.units[j]
        if m.unit_state[unit, HOLDERS] == 1:
            _unlink(m, unit)
            m.counters[FREE_BLOCKS] -= unit_blocks
        m.unit_state[unit, HOLDERS] += 1
        m.held[j] = 1
    req[r].shared = n * unit_blocks
    req[r].units_seen = n


@bare
def keep(req: Requests, m: Machine, limits: Limits, r: int, tokens: int) -> None:
    """Keep the units within the first ``tokens`` of ``r``; one that is kept already stays single."""
    unit_blocks = limits.unit_tokens // limits.block_tokens
    seen = req[r].units_seen
    while seen < req[r].units and (seen + 1) * limits.unit_tokens <= tokens:
        j = req[r].unit_at + seen
        unit = m.units[j]
        if m.unit_state[unit, HOLDERS] == 0:
            m.unit_state[unit, HOLDERS] = 2
            m.held[j] = 1
            req[r].blocks -= unit_blocks
            req[r].shared += unit_blocks
        seen += 1
    req[r].units_seen = seen


@bare
def let_go(req: Requests, m: Machine, limits: Limits, r: int) -> None:
    """Give back the units of ``r``, its last one first, so that beginnings stay longest."""
    unit_blocks = limits.unit_tokens // limits.block_tokens
    at = req[r].unit_at
    for back in range(req[r].units_seen):
        j = at + req[r].units_seen - 1 - back
        if m.held[j] == 0:
            continue
        m.held[j] = 0
        unit = m.units[j]
        m.unit_state[unit, HOLDERS] -= 1
        if m.unit_state[unit, HOLDERS] == 1:
            _link_newest(m, unit)
            m.counters[FREE_BLOCKS] += unit_blocks
    req[r].units_seen = 0
    req[r].shared = 0
