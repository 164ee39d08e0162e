"""One interface for work on several processes or machines: a job is sent to every worker once, tasks follow.

    with open_workers(job, workers=2) as workers:                          # processes of this machine
        results = workers.map(tasks)
    with open_workers(job, cluster="tcp://scheduler:8786") as workers:  # those of a Dask cluster
        results = workers.map(tasks)

A job is anything that pickles and has ``run(task)``: megabytes of profiles and requests are its attributes,
a task is small. ``map`` gives results in the order of the tasks, so that they do not depend on who ran what;
``grow`` hands on each as it arrives, and is given what follows from it. A task whose worker is lost is run
again, LOST times at most.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from multiprocessing import get_context, parent_process, resource_tracker
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from kplan.errors import InputError, KplanError
from kplan.interrupts import shielded

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)

POLL_S = 0.2
"""How long an interrupt may have to wait."""
LOST = 3
"""Times that workers may be lost under the same tasks before the search gives up."""


class WorkersLostError(KplanError):
    """Workers died again and again under the same tasks, or their cluster is gone."""


class Job(Protocol[T_contra, R_co]):
    """What every task shares; it is pickled once and stays with each worker."""

    def run(self, task: T_contra, /) -> R_co:
        """Do one task; it must not change the job."""
        ...


class Workers(Protocol[T_contra, R]):
    """Workers that hold one job."""

    def map(self, tasks: Sequence[T_contra], done: Callable[[], None] = ...) -> list[R]:
        """The result of every task, in order; ``done`` is called as each one arrives.

        Raises:
            WorkersLostError: see there.
            Exception: whatever the job raised.
        """
        ...

    def grow(self, tasks: Sequence[T_contra], more: Callable[[int, R], Sequence[T_contra]]) -> None:
        """Do ``tasks`` and what ``more(place, result)`` adds as each result arrives, in no fixed order.

        Args:
            more: its place counts the tasks in the order given, those added after the first ones.

        Raises:
            as :meth:`map`
        """
        ...


def map_by_growing(workers: Workers[T, R], tasks: Sequence[T], done: Callable[[], None]) -> list[R]:
    """:meth:`Workers.map` of workers that can grow."""
    results: dict[int, R] = {}

    def keep(place: int, result: R) -> Sequence[T]:
        results[place] = result
        done()
        return ()

    workers.grow(tasks, keep)
    return [results[i] for i in range(len(tasks))]


def open_workers(
    job: Job[T, R], workers: int = 1, cluster: str | None = None
) -> AbstractContextManager[Workers[T, R]]:
    """Workers that hold ``job``, for the length of a ``with``.

    Args:
        workers: processes of this machine.
        cluster: address of a Dask scheduler, whose workers are used instead.

    Raises:
        InputError: fewer than one worker; Dask is not installed, its scheduler cannot be reached or has no
            worker, or a worker runs other versions than this process.
    """
    if workers < 1:
        raise InputError("workers", workers, "must be at least 1")
    if cluster is None:
        return _local(job, workers)
    try:
        from kplan.search.cluster import cluster_workers
    except ImportError as error:
        raise InputError(
            "--cluster", cluster, f"needs Dask distributed ({error})", "pip install 'kplan[cluster]'"
        ) from None
    return cluster_workers(job, cluster)


_JOB: ContextVar[Job[Any, Any]] = ContextVar("job")
"""The job of this worker process; set once, when it starts."""


class _LocalWorkers:
    """Spawned processes, started anew when one of them dies.

    They are spawned, not forked: the parent may hold the threads of a compiled kernel. The job goes through a
    file: a worker that dies before it has read megabytes from its pipe would block the parent for ever.
    """

    def __init__(self, path: Path, workers: int) -> None:
        self._path, self._workers = path, workers
        self._pool = self._start()

    def map(self, tasks: Sequence[Any], done: Callable[[], None] = lambda: None) -> list[Any]:
        return map_by_growing(self, tasks, done)

    def grow(self, tasks: Sequence[Any], more: Callable[[int, Any], Sequence[Any]]) -> None:
        waiting = list(enumerate(tasks))
        running: dict[Future[Any], tuple[int, Any]] = {}
        known, lost = len(waiting), 0
        while waiting or running:
            try:
                while waiting:
                    with shielded(), _deaf_children():  # it starts processes
                        running[self._pool.submit(_run, waiting[0][1])] = waiting[0]
                    del waiting[0]
                with shielded():  # it holds the locks of all that run
                    done = wait(running, POLL_S, FIRST_COMPLETED).done
                for future in done:
                    result = future.result()
                    place, _ = running.pop(future)
                    added = more(place, result)
                    waiting += enumerate(added, known)
                    known += len(added)
            except BrokenProcessPool as error:
                lost += 1
                if lost > LOST:
                    raise WorkersLostError(
                        f"worker processes died {lost} times under the same tasks"
                    ) from error
                waiting = [*running.values(), *waiting]
                running.clear()
                self._pool.shutdown(wait=False)
                self._pool = self._start()

    def close(self) -> None:
        """End the processes; what they have not begun is dropped."""
        self._pool.shutdown(cancel_futures=True)

    def _start(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers, get_context("spawn"), initializer=_initialize, initargs=(self._path,)
        )


@contextmanager
def _local(job: Job[T, R], workers: int) -> Iterator[Workers[T, R]]:
    with TemporaryDirectory(prefix="kplan-") as folder:
        path = Path(folder) / "job"
        path.write_bytes(pickle.dumps(job))
        pool = _LocalWorkers(path, workers)
        try:
            yield pool
        finally:
            pool.close()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started meanwhile do not hear Ctrl-C, which a terminal sends to all, before ``_initialize``
    says what becomes of it: while they import, each would show a traceback."""
    resource_tracker.ensure_running()  # it starts with the first process otherwise, and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialize(path: Path) -> None:
    """Give a fresh worker its job; an interrupt is the parent's, and it ends with the parent.

    What a policy prints goes to stderr: stdout is the parent's answer.
    """
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _JOB.set(pickle.loads(path.read_bytes()))  # noqa: S301 - of our own


def _end_with_parent() -> None:
    """A killed parent closes nothing that its workers read, so that they would wait for it for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(task: Any) -> Any:
    return _JOB.get().run(task)
