"""Seconds of one call: CUDA graphs timed with events on a GPU, a wall clock on a CPU. Needs torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]

MOST_CALLS = 256
"""Calls in one graph."""

TARGET_S = 5e-3
"""Time of one replay that the number of calls aims at: a thousand times the resolution of an event."""

REPLAYS = 5


@dataclass(frozen=True)
class Timed:
    """Seconds per call, the median over ``replays``; ``spread`` is (slowest - fastest) / median."""

    seconds: float
    replays: int
    spread: float


def time_calls(device: torch.device, calls: Sequence[Call]) -> Timed:
    """Time ``calls`` (the same work on different copies of its inputs), run in turn, again and again."""
    with torch.inference_mode():
        return _time_graph(calls) if device.type == "cuda" else _time_wall(calls)


def rounds(once_s: float, calls: int) -> int:
    """How often to go through ``calls`` calls of ``once_s`` seconds each."""
    return max(1, min(MOST_CALLS // calls, int(TARGET_S / max(once_s * calls, 1e-9))))


def _time_graph(calls: Sequence[Call]) -> Timed:
    """Kernels of a replayed graph follow one another as in an engine's, without the host between them."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:  # libraries choose and load their kernels outside the capture
            call()
        once_s = _events(lambda: [call() for call in calls]) / len(calls)
        repeated = rounds(once_s, len(calls))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeated):
                for call in calls:
                    call()
        graph.replay()
        seconds = [_events(graph.replay) / (repeated * len(calls)) for _ in range(REPLAYS)]
    graph.reset()
    return _timed(seconds)


def _events(work: Call) -> float:
    """Seconds of the device between two events around ``work`` on the current stream."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def _time_wall(calls: Sequence[Call]) -> Timed:
    for call in calls:
        call()
    repeated = rounds(_wall(calls, 1), len(calls))
    return _timed([_wall(calls, repeated) for _ in range(REPLAYS)])


def _wall(calls: Sequence[Call], repeated: int) -> float:
    start = time.perf_counter()
    for _ in range(repeated):
        for call in calls:
            call()
    return (time.perf_counter() - start) / (repeated * len(calls))


def _timed(seconds: Sequence[float]) -> Timed:
    median = statistics.median(seconds)
    return Timed(median, len(seconds), (max(seconds) - min(seconds)) / median)
