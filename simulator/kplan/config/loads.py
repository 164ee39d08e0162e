"""A load in words."""

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


def load_words(load: Load, rate: str = "QPS", clients: str = "concurrency {}") -> str:
    """The load with its unit, for example "64 QPS", "concurrency 32" or "log.csv at its own pace".

    Args:
        rate: what requests per second are called.
        clients: text for so many clients.
    """
    if load.replay is not None:
        pace = "its own pace" if load.qps is None else f"{load.qps:g} {rate}"
        return f"{Path(load.replay).name} at {pace}"
    if load.concurrency is not None:
        pause = f" that pause {load.think_s:g} s between requests" if load.think_s else ""
        return clients.format(load.concurrency) + pause
    assert load.qps is not None
    if load.ramp_to_qps is not None:
        return f"{load.qps:g} to {load.ramp_to_qps:g} {rate}"
    if load.arrivals == "constant":
        return f"{load.qps:g} {rate} at even gaps"
    return f"{load.qps:g} {rate}" + (f" (burstiness {load.burstiness:g})" if load.burstiness != 1 else "")
