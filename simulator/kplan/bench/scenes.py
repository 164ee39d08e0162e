"""The loads that are timed: real scenarios, put together as the commands do it."""

from __future__ import annotations

from dataclasses import dataclass

from kplan import metrics
from kplan.bench.rounds import check
from kplan.config.scenario import make_scenario
from kplan.metrics import Measured
from kplan.registry import PolicySpec, parse_policy
from kplan.simulate import Drawn, Setup, draw_requests, prepare, run_policy

QPS, REPLICAS = 64.0, 4
"""The manual's question: Llama-3.1-8B on H100s, EAGLE-3, chat, vLLM; on fewer replicas the load saturates."""
TABLE = "table:1-64=3,65-96=2,97-=1"
"""A table whose K changes among the batches that these loads visit."""


@dataclass(frozen=True)
class Run:
    """One policy on one load, ready to be served again and again."""

    setup: Setup
    spec: PolicySpec
    drawn: Drawn

    @property
    def asked_tokens(self) -> int:
        """Output tokens of all requests."""
        return int(self.drawn.output_len.sum())

    def serve(self, *, compiled: bool = True) -> Measured:
        """Serve every request, and check that it was.

        Raises:
            InfeasibleError: fewer tokens were emitted than asked for, or more.
        """
        scenario = self.setup.scenario
        run = run_policy(
            self.setup, self.spec, self.drawn, replicas=scenario.replicas or 1, compiled=compiled
        )
        # clients are met midway: of a closed loop's first requests some tokens lie before the start
        before = int(self.drawn.output_len[: scenario.concurrency].sum()) if scenario.concurrency else 0
        check(
            self.asked_tokens - before <= run.output_tokens <= self.asked_tokens,
            f"{run.output_tokens} output tokens were emitted, {self.asked_tokens} asked for",
        )
        return run


def table_run(requests: int) -> Run:
    """``requests`` at QPS on REPLICAS replicas under TABLE: KV blocks, chunked prefill, mixed lengths."""
    return _run({"qps": QPS, "replicas": REPLICAS}, requests)


def client_run(clients: int, requests: int) -> Run:
    """``clients`` that each keep one request in flight on one replica under TABLE."""
    return _run({"concurrency": clients}, requests)


def _run(load: dict[str, float], requests: int) -> Run:
    setup = prepare(make_scenario(load))
    return Run(setup, parse_policy(TABLE), draw_requests(setup, requests, setup.scenario.seed))


def mean_batch(run: Measured) -> float:
    """Requests per step in the measured window."""
    return metrics.mean_batch([run])
