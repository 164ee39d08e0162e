"""What the fake server is, and how it misbehaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Engine:
    """What the server is. Fields may be changed while it runs.

    Attributes:
        name: ``vllm`` or ``sglang``.
        k: drafts a step; 0: without speculation.
        alpha: chance that a draft is accepted, given that those before it were.
        k_of: drafts of a step by the number of running requests (a table); None: always ``k``.
        offers: chance that the proposer has a draft to offer (below 1: n-gram).
        detail: vLLM's ``--per-request-spec-decode-metrics``: none, summary or detailed.
        metrics: whether /metrics is there.
        output_len: tokens after which the model stops by itself, unless ``ignore_eos``; None: never.
        step_s: seconds of a step.
        max_model_len: longest prompt and output together.
        steps_at_a_time: steps whose tokens are sent as one chunk (stream interval, or a slow reader).
    """

    name: str = "vllm"
    model: str = "fake-model"
    version: str = "0.32.0"
    k: int = 4
    alpha: float = 0.7
    k_of: Callable[[int], int] | None = None
    offers: float = 1.0
    detail: str = "detailed"
    metrics: bool = True
    output_len: int | None = None
    step_s: float = 0.0
    max_model_len: int = 4096
    steps_at_a_time: int = 1
    api_key: str | None = None


def never(_: int) -> None:
    """The fault of a request that has none."""


@dataclass
class Faults:
    """How the server misbehaves. ``nth`` counts the requests of a path, or the generations, from 1.

    Attributes:
        fail: (path, nth) -> HTTP status to answer with, None: as usual.
        wait_s: (path, nth) -> seconds before the answer.
        cut_after: nth generation -> chunks after which the connection breaks, None: never.
        stall_after: nth generation -> chunks after which nothing more comes, until other faults are set.
        error_after: nth generation -> chunks after which an error is streamed, as vLLM does when it dies.
        missing: names of series that /metrics leaves out.
    """

    fail: Callable[[str, int], int | None] = lambda _, __: None
    wait_s: Callable[[str, int], float] = lambda _, __: 0.0
    cut_after: Callable[[int], int | None] = never
    stall_after: Callable[[int], int | None] = never
    error_after: Callable[[int], int | None] = never
    missing: frozenset[str] = frozenset()
