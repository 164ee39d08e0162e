"""What neither the load nor the SLOs change, kept by what each part of it depends on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kplan.acceptance import TraceSet, load_traces
from kplan.config.plan import BatchRange
from kplan.config.scenario import check_one_proposer
from kplan.dashboard.kept import Kept
from kplan.dashboard.moved import with_acceptance
from kplan.dashboard.state import OWN, Files, State
from kplan.errors import InputError
from kplan.registry import PolicySpec
from kplan.rng import stream
from kplan.search.candidates import WalkCurve, candidate_specs, greedy_table, rates, walk_curve
from kplan.search.evaluate import check_room, runnable
from kplan.simulate import POOL, Drawn, Setup, Sustained, draw_requests, prepare, sustained
from kplan.simulate.parallel import at_once
from kplan.workload import Workload, gamma

REPLICATIONS = 4
"""Seeds of a quick look."""
POOL_TOKENS = 3_000_000
"""Output tokens of the distinct requests of all replications together, about."""
FEWEST_POOL = 512
"""Distinct requests: at least."""
_LEFT_OUT = frozenset(("goodput", "oracle"))
"""Candidates that no engine runs: the whole ``recommend`` has them."""


@dataclass(frozen=True)
class Base:
    """What the load and the SLOs do not change.

    Attributes:
        setup: at any rate.
        sample: distinct requests.
        table: the best K by batch in steady steps.
        specs: the policies compared; able: those that the engine runs.
        limits: the rate that one replica sustains under each.
    """

    setup: Setup
    sample: Drawn
    curve: WalkCurve
    table: tuple[BatchRange, ...]
    specs: tuple[PolicySpec, ...]
    able: tuple[PolicySpec, ...]
    limits: dict[str, Sustained]

    def replication(self, seed: int, n: int) -> Drawn:
        """``n`` requests with Poisson arrivals at a mean rate of one: those of the sample that no other seed
        of REPLICATIONS draws, shuffled turn after turn, so that replications are independent."""
        sample = self.sample
        # of a recording every seed draws all: it may be a few requests
        own = np.arange(len(sample.prompt_len))
        if self.setup.recorded is None:
            own = own[seed::REPLICATIONS]
        turns = -(-n // len(own))
        rows = np.concatenate([stream(seed, "rows", turn).permutation(own) for turn in range(turns)])[:n]
        return replace(
            sample,
            prompt_len=sample.prompt_len[rows],
            output_len=sample.output_len[rows],
            trace_at=sample.trace_at[rows],
            unit_arrival_s=gamma(1.0, n, seed, 1.0),
        )


class Bases:
    """The bases used last, and the requests used last: hardware, GPUs and engine change no request.

    Args:
        kept: bases held.
    """

    def __init__(self, files: Files = OWN, kept: int = 12) -> None:
        self._files = files
        self._bases: Kept[State, Base] = Kept(kept)
        self._workloads: Kept[tuple[object, ...], Workload | None] = Kept(kept)
        self._traces: Kept[tuple[object, ...], TraceSet] = Kept(kept)

    def get(self, state: State) -> Base:
        """The base of ``state``, whatever its load and SLOs.

        Raises:
            InputError: a combination that no profile covers.
            InfeasibleError: the weights do not fit.
        """
        free = {"qps": State().qps, "clients": None, "slo_tpot": None, "slo_ttft": None}
        key = state.model_copy(update=free)
        return self._bases.get(key, lambda: self._made(key))

    def _made(self, key: State) -> Base:
        """Load, price and find what every policy sustains."""
        check_one_proposer(key.proposer)
        setup = self._moved(prepare(key.scenario(REPLICATIONS, self._files)), key)
        if setup.lengths.longest_output < 2:
            raise InputError(
                "output length", 1, "no request emits a second token", "nothing can be speculated"
            )
        sample = self._sample(setup, key)
        max_k, tree = setup.scenario.max_k, setup.drafter.tree
        curve = walk_curve(sample.trace, max_k, tree)
        table = greedy_table(rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context))
        specs = tuple(
            spec
            for spec in candidate_specs(table, max_k, tree)
            if spec.name not in _LEFT_OUT and (runnable(setup, spec) or spec.name != "sglang-ema")
        )
        check_room(setup, specs)
        able = tuple(spec for spec in specs if runnable(setup, spec))
        found = at_once(lambda spec: sustained(setup, spec, [sample]), specs)
        limits = {spec.text: limit for spec, limit in zip(specs, found, strict=True)}
        return Base(setup, sample, curve, table, specs, able, limits)

    def _moved(self, setup: Setup, key: State) -> Setup:
        """``setup`` at the acceptance asked for."""
        if setup.workload is None or key.acceptance == 0:
            return with_acceptance(setup, key.acceptance)
        named = (*_acceptance_of(setup, key), key.acceptance)
        own = self._workloads.get(named, lambda: with_acceptance(setup, key.acceptance).workload)
        return replace(setup, source=replace(setup.source, workload=own))

    def _sample(self, setup: Setup, key: State) -> Drawn:
        """Distinct requests of the load."""
        seed = setup.scenario.seed
        if setup.recorded is not None:
            return draw_requests(setup, len(setup.recorded), seed)
        assert setup.workload is not None
        workload = setup.workload
        n = int(np.clip(POOL_TOKENS / setup.lengths.output, FEWEST_POOL, POOL))
        named = (*_acceptance_of(setup, key), key.acceptance, key.output, n)
        traces = self._traces.get(
            named, lambda: workload.traces(seed, n, key.proposer, output_tokens=key.output)
        )
        return draw_requests(replace(setup, source=replace(setup.source, recorded=traces)), n, seed)


def first_state(files: Files) -> State:
    """The default state; with traces that lack its proposer, that of their first.

    Raises:
        InputError: traces that cannot be read.
    """
    if files.traces is None:
        return State()
    known = load_traces(files.traces).proposers
    return State() if State().proposer in known else State.of({"proposer": min(known)})


def _acceptance_of(setup: Setup, key: State) -> tuple[object, ...]:
    """What the acceptance model depends on: a tree's, on the model's drafter too."""
    return key.workload, key.proposer, key.model if setup.drafter.tree is not None else ""
