"""Workers of a Dask cluster (the extra ``cluster``)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

from distributed import (
    Client,
    Future,
    KilledWorker,
    Worker,
    WorkerPlugin,
    as_completed,
    get_worker,
)
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.core import CommClosedError

from kplan.errors import InputError
from kplan.provenance import versions
from kplan.search.executor import LOST, Job, Workers, WorkersLostError, map_by_growing

T = TypeVar("T")
R = TypeVar("R")

WAIT_S = 20
"""Seconds that a scheduler gets to answer, and then to have a worker."""


class Held(WorkerPlugin):
    """The job, held by a worker; the scheduler gives it to workers that join later too."""

    def __init__(self, pickled: bytes, ours: Mapping[str, str]) -> None:
        self.name = f"kplan-{uuid4().hex}"
        self._pickled, self._ours = pickled, dict(ours)

    def setup(self, worker: Worker) -> None:
        """Unpickle the job, once; a worker of other versions must not."""
        self.address = worker.address
        self.differs = {name: own for name, own in versions().items() if own != self._ours.get(name)}
        self.job: Job[Any, Any] | None = None if self.differs else pickle.loads(self._pickled)  # noqa: S301 - of our own
        self._pickled = b""

    def run(self, task: Any) -> Any:
        """Do one task.

        Raises:
            InputError: this worker runs other versions than the coordinator.
        """
        if self.job is None:
            told = ", ".join(
                f"{name} {theirs} (here {self._ours.get(name)})" for name, theirs in self.differs.items()
            )
            raise InputError(
                "--cluster", self.address, f"this worker runs {told}", "install the same versions everywhere"
            )
        return self.job.run(task)


def _run(name: str, task: Any) -> Any:
    held = get_worker().plugins[name]
    assert isinstance(held, Held)
    return held.run(task)


class _ClusterWorkers:
    def __init__(self, client: Client, name: str, address: str) -> None:
        self._client, self._name, self._address = client, name, address

    def map(self, tasks: Sequence[Any], done: Callable[[], None] = lambda: None) -> list[Any]:
        return map_by_growing(self, tasks, done)

    def grow(self, tasks: Sequence[Any], more: Callable[[int, Any], Sequence[Any]]) -> None:
        place: dict[Future[Any], int] = {}

        def begin(added: Sequence[Any]) -> list[Future[Any]]:
            futures = self._client.map(_run, [self._name] * len(added), added, pure=False)
            place.update(zip(futures, range(len(place), len(place) + len(added)), strict=True))
            return list(futures)

        try:
            running = as_completed(begin(tasks), loop=self._client.loop)
            for future in running:
                result = future.result()
                future.release()  # or it would be done again if its worker died, which keeps the result
                added = more(place[future], result)
                if added:
                    running.update(begin(added))
        except KilledWorker as error:
            raise WorkersLostError(f"more than {LOST} workers died under the same task") from error
        except (CancelledError, CommClosedError) as error:
            raise WorkersLostError(
                f"the scheduler {self._address} went away: start it and give the same command again, which "
                "goes on from the trials that are done"
            ) from error
        finally:
            self._client.cancel(list(place))


@contextmanager
def cluster_workers(job: Job[T, R], address: str) -> Iterator[Workers[T, R]]:
    """The workers of the Dask scheduler at ``address``, see kplan.search.executor.open_workers."""
    try:
        parse_host_port(parse_address(address)[1])  # a client of no address would end with noise
        client = Client(address, timeout=WAIT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:  # no such host or scheme, nobody there, no answer
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(
            "--cluster", address, f"no Dask scheduler answers there ({reason})",
            "start one: dask scheduler, then dask worker tcp://HOST:8786",
        ) from None  # fmt: skip
    with client:
        try:
            client.wait_for_workers(1, timeout=WAIT_S)
        except TimeoutError:
            raise InputError(
                "--cluster", address, f"no worker joined it within {WAIT_S} s",
                f"start some: dask worker {address}",
            ) from None  # fmt: skip
        held = Held(pickle.dumps(job), versions())
        client.register_plugin(held, name=held.name)
        try:
            yield _ClusterWorkers(client, held.name, address)
        finally:
            if client.status == "running":
                client.unregister_worker_plugin(held.name)
