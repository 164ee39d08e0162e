"""A load, and the GPUs that serve it, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Load(Protocol):
    """What a scenario and a plan's question both say of the load."""

    @property
    def qps(self) -> float | None: ...
    @property
    def concurrency(self) -> int | None: ...
    @property
    def replay(self) -> Path | str | None: ...
    @property
    def arrivals(self) -> str: ...
    @property
    def burstiness(self) -> float: ...
    @property
    def ramp_to_qps(self) -> float | None: ...
    @property
    def think_s(self) -> float: ...


class Origin(Protocol):
    """What a plan's question says of where its requests come from."""

    @property
    def replay(self) -> str | None: ...
    @property
    def workload(self) -> str: ...
    @property
    def traces(self) -> str | None: ...
    @property
    def dataset(self) -> str | None: ...


def requests_words(asked: Origin) -> str:
    """Where lengths and acceptance come from, for example "sharegpt" or "acceptance of sharegpt"."""
    if asked.traces is not None:
        return f"traces {traces_words(asked.traces, asked.dataset)}"
    return asked.workload if asked.replay is None else f"acceptance of {asked.workload}"


def traces_words(traces: str, dataset: str | None) -> str:
    """A file of traces, with its data set where one of several is meant."""
    return traces if dataset is None else f"{traces} ({dataset})"


class Ranks(Protocol):
    """What a scenario and a plan's question both say of the GPUs of a replica."""

    @property
    def tp(self) -> int: ...
    @property
    def dp(self) -> int: ...


def ranks_words(ranks: Ranks) -> str:
    """How a replica is split, for example "TP 4" or "TP 4 x DP 2"."""
    return f"TP {ranks.tp}" + (f" x DP {ranks.dp}" if ranks.dp > 1 else "")


def load_words(load: Load, rate: str = "QPS", clients: str = "concurrency {}") -> str:
    """The load with its unit, for example "64 QPS", "concurrency 32" or "the pace of log.csv".

    Args:
        rate: what requests per second are called.
        clients: text for so many clients.
    """
    if load.replay is not None:
        log = Path(load.replay).name
        return f"the pace of {log}" if load.qps is None else f"{load.qps:g} {rate} in the pattern of {log}"
    if load.concurrency is not None:
        pause = f" with pauses of {load.think_s:g} s" if load.think_s else ""
        return clients.format(load.concurrency) + pause
    assert load.qps is not None
    if load.ramp_to_qps is not None:
        return f"{load.qps:g} to {load.ramp_to_qps:g} {rate}"
    if load.arrivals == "constant":
        return f"{load.qps:g} {rate} at even gaps"
    return f"{load.qps:g} {rate}" + (f" (burstiness {load.burstiness:g})" if load.burstiness != 1 else "")
