"""A slow scheduler in plain Python, written from the rules, to hold the compiled one against.

It keeps sets and lists where the engine keeps counters and rings, and shares no code with it. It schedules
and commits the same steps at the same moments; the engine's clock is the only thing it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kplan.engine import Limits, Load


@dataclass
class Asked:
    """One request as the reference sees it."""

    prompt: int
    output: int
    acc: list[int]
    drafted: list[int]
    units: list[int]
    emitted: int = 0
    computed: int = 0
    drafts: int = 0
    own: int = 0  # blocks
    seen: int = 0  # units settled: shared, kept, or found kept by another
    shares: list[int] = field(default_factory=list)
    found: int | None = None  # tokens that its first admission found in the cache

    @property
    def length(self) -> int:
        return self.prompt + self.emitted

    @property
    def decoding(self) -> bool:
        return self.emitted > 0 and self.length - self.computed == 1


class Reference:
    """One replica under a fixed K."""

    def __init__(self, load: Load, limits: Limits, k: int) -> None:
        self.limits, self.k = limits, min(k, limits.max_k)
        self.unit = load.prefix.unit_tokens if load.prefix else 0
        self.asked = [_asked(load, r) for r in range(len(load))]
        self.waiting: list[int] = []  # preempted ones in front
        self.running: list[int] = []
        self.holders: dict[int, set[int]] = {}  # of each kept unit
        self.idle: list[int] = []  # kept units without holders, least recently used first
        self.chunks: dict[int, tuple[int, bool]] = {}  # of the step: request -> (tokens, decodes)

    @property
    def unit_blocks(self) -> int:
        return self.unit // self.limits.block_tokens

    @property
    def free(self) -> int:
        held = sum(1 for users in self.holders.values() if users)
        own = sum(one.own for one in self.asked)
        return self.limits.total_blocks - own - held * self.unit_blocks

    def _settle(self) -> None:
        """Drop the oldest idle units that the free blocks cannot hold."""
        while len(self.idle) * self.unit_blocks > self.free:
            del self.holders[self.idle.pop(0)]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _grow(self, r: int, tokens: int) -> bool:
        one = self.asked[r]
        more = self._blocks(tokens) - one.own - len(one.shares) * self.unit_blocks
        if more > self.free:
            return False
        one.own += max(more, 0)
        self._settle()
        return True

    def _keep(self, r: int, tokens: int) -> None:
        one = self.asked[r]
        while self.unit and one.seen < len(one.units) and (one.seen + 1) * self.unit <= tokens:
            unit = one.units[one.seen]
            one.seen += 1
            if unit not in self.holders:
                self.holders[unit] = {r}
                one.shares.append(unit)
                one.own -= self.unit_blocks

    def _release(self, r: int) -> None:
        one = self.asked[r]
        one.own = one.seen = 0
        for unit in reversed(one.shares):
            self.holders[unit].discard(r)
            if not self.holders[unit]:
                self.idle.append(unit)
        one.shares = []

    def _preempt(self) -> None:
        r = self.running.pop()
        self._release(r)
        self.asked[r].computed = self.asked[r].drafts = 0
        self.waiting.insert(0, r)

    def _admit(self, r: int, budget: int) -> int:
        """Tokens given to ``r``, 0 when it cannot come in."""
        one = self.asked[r]
        hits = 0
        if self.unit:
            most = min(len(one.units), (one.length - 1) // self.unit)
            while hits < most and one.units[hits] in self.holders:
                hits += 1
        cached = hits * self.unit
        want = min(one.length - cached, budget)
        tokens = one.length if self.limits.prefill_first else cached + want
        revived = [unit for unit in one.units[:hits] if not self.holders[unit]]
        needs = self._blocks(tokens) + (len(revived) - hits) * self.unit_blocks
        if needs > self.free:
            return 0
        for unit in one.units[:hits]:
            self.holders[unit].add(r)
        self.idle = [unit for unit in self.idle if unit not in revived]
        one.shares, one.seen = one.units[:hits], hits
        assert self._grow(r, tokens)
        one.computed = cached
        self._keep(r, cached + want)
        if one.found is None:
            one.found = cached
        return want

    def schedule(self, arrived: list[int]) -> None:
        """Build the next step; ``arrived``: who came since the last, in order."""
        self.waiting += arrived
        self.chunks = {}
        budget = self.limits.max_num_batched_tokens
        if self.limits.prefill_first:
            budget = self._go_on([r for r in self.running if not self.asked[r].decoding], budget)
            self._let_in(budget)
            if not self.chunks:
                self._decode_all(self.limits.max_num_seqs * (self.limits.max_k + 1))
            return
        budget, quiet = self._decode_all(budget)
        if quiet:
            self._let_in(budget)

    def _go_on(self, prompts: list[int], budget: int) -> int:
        for r in prompts:
            one = self.asked[r]
            want = min(one.length - one.computed, budget)
            if want:
                self.chunks[r] = (want, False)
                self._keep(r, one.computed + want)
                budget -= want
        return budget

    def _decode_all(self, budget: int) -> tuple[int, bool]:
        preempted = False
        for r in list(self.running):
            one = self.asked[r]
            if r not in self.running or not budget:
                continue
            decodes = one.decoding
            want = one.length - one.computed
            if decodes:
                want = 1 + (self.limits.max_k if self.limits.k_now else one.drafts)
                want = min(want, self.limits.max_len - 1 - one.computed)
            want = min(want, budget)
            while r in self.running and not self._grow(r, one.computed + want):
                self._preempt()
                preempted = True
            if r not in self.running:
                break
            if decodes and not self.limits.k_now:
                one.drafts = want - 1
            self._keep(r, one.computed + (1 if decodes else want))
            self.chunks[r] = (want, decodes)
            budget -= want
        return budget, not preempted

    def _let_in(self, budget: int) -> None:
        while budget and self.waiting and len(self.running) < self.limits.max_num_seqs:
            want = self._admit(self.waiting[0], budget)
            if not want:
                return
            r = self.waiting.pop(0)
            self.running.append(r)
            self.chunks[r] = (want, False)
            budget -= want

    def commit(self) -> list[int]:
        """Emit what the step emits; who finished, in order of the batch."""
        ended = []
        for r, (tokens, decodes) in self.chunks.items():
            one = self.asked[r]
            if decodes:
                if self.limits.k_now:
                    one.drafts = min(self.k, tokens - 1, one.drafted[one.emitted])
                out = min(one.acc[one.emitted], one.drafts + 1, one.output - one.emitted)
                one.emitted += out
                one.computed += out
            else:
                one.computed += tokens
                whole = one.computed == one.length
                one.emitted += whole
            if one.emitted == one.output:
                ended.append(r)
            elif (decodes or whole) and not self.limits.k_now:  # vLLM drafts nothing after a part of a prompt
                one.drafts = min(self.k, one.drafted[one.emitted])
        for r in ended:
            self.running.remove(r)
            self._release(r)
        return ended


def _asked(load: Load, r: int) -> Asked:
    at, n = int(load.trace_at[r]), int(load.output_len[r])
    units: list[int] = []
    if load.prefix is not None:
        units = load.prefix.ids[load.prefix.offsets[r] : load.prefix.offsets[r + 1]].tolist()
    acc, drafted = load.traces.acc[at : at + n].tolist(), load.traces.drafted[at : at + n].tolist()
    return Asked(int(load.prompt_len[r]), n, acc, drafted, units)
