"""The executor: results in order whoever works, lost workers, and clusters that cannot be used."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kplan.errors import InputError
from kplan.search import executor
from kplan.search.executor import LOST, WorkersLostError, open_workers
from tests.search.jobs import Deadly, Squares
from tests.search.servers import Dask, dask_cluster, wait_for


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dask]:
    with dask_cluster(tmp_path_factory.mktemp("dask"), 2) as cluster:
        yield cluster


def workers_of(folder: Path) -> set[str]:
    return {path.name.partition("-")[2] for path in folder.iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_local_results_come_in_the_order_of_the_tasks(tmp_path: Path, workers: int) -> None:
    told: list[int] = []
    with open_workers(Squares(tmp_path, 0.05), workers) as pool:
        assert pool.map([3, 1, 2, 5, 4], lambda: told.append(1)) == [9, 1, 4, 25, 16]
        assert pool.map([]) == []
    assert len(told) == 5
    assert 1 <= len(workers_of(tmp_path)) <= workers
    assert str(os.getpid()) not in workers_of(tmp_path)


def test_a_lost_process_is_replaced_and_its_tasks_run_again(tmp_path: Path) -> None:
    with open_workers(Deadly(tmp_path, lives=2), 2) as pool:
        assert pool.map(range(8)) == list(range(8))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_task_that_always_kills_its_process_is_given_up(tmp_path: Path) -> None:
    with open_workers(Deadly(tmp_path, lives=99), 1) as pool, pytest.raises(WorkersLostError, match="died 4"):
        pool.map(range(5))
    assert len(list(tmp_path.iterdir())) == LOST + 1


def test_the_fault_of_a_task_is_that_of_the_call(tmp_path: Path) -> None:
    with open_workers(Squares(tmp_path), 1) as pool:
        with pytest.raises(InputError, match="task: got -1, must not be negative; give another"):
            pool.map([1, -1])
        assert pool.map([2]) == [4]


def test_fewer_than_one_worker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="workers: got 0, must be at least 1"):
        open_workers(Squares(tmp_path), 0)


def test_dask_workers_share_the_tasks_and_know_one_job_at_a_time(dask: Dask, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with open_workers(Squares(first, 0.05), cluster=dask.address) as pool:
        assert pool.map(list(range(12))) == [i * i for i in range(12)]
    with open_workers(Squares(second, 0.0), cluster=dask.address) as pool:
        assert pool.map([7]) == [49]
        with pytest.raises(InputError, match="task: got -1"):
            pool.map([-1])
    assert workers_of(first) == {str(worker.pid) for worker in dask.workers}
    assert len(list(second.iterdir())) == 2


def test_a_dask_worker_of_other_versions_is_named(
    dask: Dask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kplan.search import cluster

    monkeypatch.setattr(cluster, "versions", lambda: cluster_versions() | {"numpy": "0.9"})
    cluster_versions = executor_versions
    with (
        open_workers(Squares(tmp_path), cluster=dask.address) as pool,
        pytest.raises(InputError, match=r"--cluster: got 'tcp://127.*runs numpy \d.*\(here 0.9\)"),
    ):
        pool.map([1])


def executor_versions() -> dict[str, str]:
    from kplan.provenance import versions

    return versions()


def test_a_killed_dask_worker_costs_its_running_task_alone(tmp_path: Path) -> None:
    with dask_cluster(tmp_path, 2) as dask:
        marks = tmp_path / "marks"
        marks.mkdir()
        victim = dask.workers[0]

        def kill() -> None:
            wait_for(lambda: str(victim.pid) in workers_of(marks), 30, "the worker got no task")
            time.sleep(0.3)
            victim.send_signal(signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with open_workers(Squares(marks, 0.2), cluster=dask.address) as pool:
            assert pool.map(list(range(16))) == [i * i for i in range(16)]
        killer.join()
        ran = [int(path.name.partition("-")[0]) for path in marks.iterdir()]
        assert set(ran) == set(range(16))
        # the one that ran again, and the one before where nobody had fetched its result yet; no other
        assert len(ran) in (17, 18)


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:1", "nonsense://x", "no-such-host.invalid:8786", "no-port"]
)
def test_a_scheduler_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    from kplan.search import cluster

    monkeypatch.setattr(cluster, "WAIT_S", 1)
    with (
        pytest.raises(InputError, match=r"--cluster: got .*no Dask scheduler answers there"),
        open_workers(Squares(tmp_path), cluster=address),
    ):
        pass


def test_without_dask_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "kplan.search.cluster", None)
    with pytest.raises(InputError, match=r"needs Dask distributed.*pip install 'kplan\[cluster\]'"):
        executor.open_workers(Squares(tmp_path), cluster="tcp://127.0.0.1:8786")
