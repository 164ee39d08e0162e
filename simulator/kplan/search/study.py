"""Search for the batch table with the lowest mean TPOT: an Optuna study over the K of every tier of batches.

Every trial runs on the same requests (common random numbers), so two tables differ by what they do alone. The
greedy table of the latency model is tried first: what is found is never worse.
"""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna

from kplan.config.plan import BatchRange
from kplan.errors import InputError
from kplan.registry import parse_policy
from kplan.rng import stream
from kplan.search.candidates import greedy_table, rates, table_text, walk_curve
from kplan.search.evaluate import overload
from kplan.simulate import Drawn, Setup, draw_requests, run_policy, sustained_qps

LADDER = (1, 9, 17, 33, 65, 97, 129, 193, 257, 385, 513, 769)
"""First batch sizes of the tiers that are searched; those of the greedy table are added."""
TOGETHER = 8
"""Trials that are asked for at once, whatever the number of workers: so it cannot change what is tried."""


@dataclass(frozen=True)
class Tried:
    """One trial.

    Attributes:
        policy: its text.
        tpot_s: mean TPOT; of a saturated load that of the requests measured while the queue grew.
        overload: share of the sustained rate by which the load exceeds what counts as sustained.
        output_tokens: tokens that it emitted in all.
    """

    policy: str
    tpot_s: float
    overload: float
    output_tokens: int

    @property
    def saturated(self) -> bool:
        """The load cannot be sustained."""
        return self.overload > 0


@dataclass(frozen=True)
class TableSearch:
    """Every trial in the order asked, the greedy table first; ``wall_s`` is how long the search took."""

    trials: tuple[Tried, ...]
    requests: int
    wall_s: float = field(compare=False)

    @property
    def greedy(self) -> Tried:
        """The table that the latency model alone would choose."""
        return self.trials[0]

    @property
    def best(self) -> Tried | None:
        """The lowest mean TPOT among the trials that keep up, the first of equals; None when none does."""
        return min(
            (one for one in self.trials if not one.saturated), key=lambda one: one.tpot_s, default=None
        )


@dataclass(frozen=True)
class _Job:
    """What every trial of a study shares."""

    setup: Setup
    drawn: Drawn
    replicas: int

    def run(self, text: str) -> Tried:
        spec = parse_policy(text)
        limit = sustained_qps(self.setup, spec, self.drawn) * self.replicas
        run = run_policy(self.setup, spec, self.drawn, replicas=self.replicas)
        over = overload(self.setup, [run], limit)
        return Tried(spec.text, run.mean_tpot_s, over, run.output_tokens)


_JOB: ContextVar[_Job] = ContextVar("job")
"""The job of this worker process; set once, when it starts."""


def search_table(
    setup: Setup,
    trials: int,
    workers: int,
    seed: int,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> TableSearch:
    """Search the batch tables for the lowest mean TPOT at the scenario's rate on its replicas (1 when open).

    The same arguments give the same trials, whatever the number of workers. A script that calls this needs
    the usual ``if __name__ == "__main__":``, for the processes import it.

    Args:
        trials: tables simulated.
        workers: processes that simulate them.
        seed: of the requests and of the sampler.
        seconds: simulated time; the rate times it is the number of requests.

    Raises:
        InputError: a count below 1, a load without a rate, a drafter of one K (a tree, a parallel draft), too
            short a time for every replica to see a request, or requests that emit one token each.
    """
    start_s = time.perf_counter()
    n = _requests(setup, trials, workers, seconds)
    drawn = draw_requests(setup, n, seed)
    job = _Job(setup, drawn, setup.scenario.replicas or 1)
    curve = walk_curve(drawn.trace, setup.scenario.max_k)
    greedy = greedy_table(rates(setup.latency_table, curve, setup.max_num_seqs, setup.lengths.context))
    starts = _tiers(greedy, setup.max_num_seqs)
    ks: dict[str, optuna.distributions.BaseDistribution] = {
        _name(start): optuna.distributions.IntDistribution(0, setup.scenario.max_k) for start in starts
    }
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=int(stream(seed, "search").integers(2**32)))
    )
    study.enqueue_trial({_name(start): _k_at(greedy, start) for start in starts})
    done: list[Tried] = []
    with _pool(job, workers) as pool:
        while len(done) < trials:
            asked = [study.ask(ks) for _ in range(min(TOGETHER, trials - len(done)))]
            texts = [_text(starts, [trial.params[_name(start)] for start in starts]) for trial in asked]
            for trial, tried in zip(asked, pool.map(_try, texts), strict=True):
                trial.set_constraint("overload", tried.overload)
                study.tell(trial, tried.tpot_s)
                done.append(tried)
                progress(f"trial {len(done)} of {trials}")
    return TableSearch(tuple(done), n, time.perf_counter() - start_s)


def _requests(setup: Setup, trials: int, workers: int, seconds: float) -> int:
    """How many requests arrive in ``seconds``; raises as :func:`search_table` says."""
    qps, replicas = setup.rate, setup.scenario.replicas or 1
    for what, count in (("trials", trials), ("workers", workers)):
        if count < 1:
            raise InputError(what, count, "must be at least 1")
    if qps is None:
        raise InputError("--concurrency", setup.scenario.concurrency, "is no rate to search at", "give --qps")
    if setup.lengths.longest_output < 2:
        raise InputError("output length", 1, "no request emits a second token", "nothing can be speculated")
    if setup.drafter.one_k:
        raise InputError(
            "proposer", setup.drafter.proposer, "engines keep one K while it drafts, so a table has no use",
            "search with another proposer, or compare policies with kplan recommend",
        )  # fmt: skip
    n = round(qps * seconds)
    if n < replicas:
        raise InputError(
            "seconds", seconds, f"{n} requests arrive, {replicas} replicas need one each", "simulate longer"
        )
    return n


@contextmanager
def _pool(job: _Job, workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that hold ``job``.

    They are spawned, not forked: the parent may hold the threads of a compiled kernel. The job goes through a
    file: a worker that dies before it has read megabytes from its pipe would block the parent for ever.
    """
    with TemporaryDirectory(prefix="kplan-") as folder:
        path = Path(folder) / "job"
        path.write_bytes(pickle.dumps(job))
        with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_start, initargs=(path,)) as pool:
            yield pool


def _start(path: Path) -> None:
    """Give a fresh worker its job; an interrupt is the parent's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _JOB.set(pickle.loads(path.read_bytes()))


def _try(text: str) -> Tried:
    return _JOB.get().run(text)


def _tiers(greedy: Sequence[BatchRange], seats: int) -> list[int]:
    """First batch sizes of the tiers: those of the ladder and of the greedy table, up to ``seats``."""
    return sorted(start for start in {*LADDER, *(one.start for one in greedy)} if start <= seats)


def _name(start: int) -> str:
    return f"k_from_{start}"


def _k_at(table: Sequence[BatchRange], batch: int) -> int:
    return next(one.k for one in reversed(table) if one.start <= batch)


def _text(starts: Sequence[int], ks: Sequence[int]) -> str:
    """The shortest table text that gives K ``ks[i]`` from batch ``starts[i]`` on."""
    runs = [next(tier) for _, tier in groupby(zip(starts, ks, strict=True), key=lambda tier: tier[1])]
    ends = [start - 1 for start, _ in runs[1:]]
    return table_text(
        tuple(
            BatchRange(start=start, end=end, k=k) for (start, k), end in zip(runs, [*ends, None], strict=True)
        )
    )
