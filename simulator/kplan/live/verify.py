"""A plan held against a live server: its own load is sent, and what was predicted stands beside what came."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kplan.config.loads import load_words
from kplan.config.plan import Plan
from kplan.errors import InputError
from kplan.live.bench_serve import Traffic, command_of, run_load
from kplan.live.judge import Figure, Measurements, Verdict, judge, measurements
from kplan.live.judge_cause import Attribution, attribute, positions
from kplan.live.judge_predict import Forecast, Predicted
from kplan.live.judge_server import disturbances, mismatches, refuse
from kplan.live.judge_steps import read_step_log
from kplan.live.metrics import Snapshot, Window
from kplan.live.prompts import Prompt, read_prompts
from kplan.live.server import Server, ServerInfo
from kplan.live.steplog import log_size
from kplan.live.workload import (
    MOST_REQUESTS,
    Demand,
    Files,
    Planned,
    demand,
    planned,
    requests_by_default,
)
from kplan.live.workload_flags import Target, takes
from kplan.live.workload_send import send, warm_up
from kplan.provenance import versions
from kplan.telling import Tell, silent

SHARE = 0.6
"""Share of the time limit that the load is expected to take at most; a server may be slower than planned."""
FEWEST = 10
"""Requests below which nothing is sent."""
SETTLE_S, LOOK_S = 3.0, 0.1
"""Longest wait, and pause, until the server has counted its last request."""


@dataclass(frozen=True)
class Settings:
    """How a server is verified.

    Attributes:
        files: that stand for those the plan names.
        bounds: tolerances by name.
        requests: to send; None: as many as a simulation takes, if there is time.
        prompts: file of prompts; None: random tokens.
        limit_s: for all that is sent.
        engine_python: interpreter of the engine's environment, for its load generator.
        step_log: file that grows by a line a step while the server is up.
        tokenizer: for the load generator; None: as the server names its model.
        api_key: of the server.
    """

    files: Files
    bounds: dict[str, float]
    requests: int | None = None
    prompts: Path | None = None
    limit_s: float = 600.0
    engine_python: Path | None = None
    step_log: Path | None = None
    tokenizer: str | None = None
    api_key: str | None = None


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        plan: what was planned.
        server: who answered.
        load: in words.
        generator: what sent it.
        findings: where the server is not the plan's, or was not alone; sentences.
        figures: predicted beside measured.
        positions: (predicted, measured) share of drafts accepted up to each position.
        attribution: the cause.
        notes: how the figures came about.
        duration_s: that the load took.
    """

    plan: Plan
    server: ServerInfo
    load: str
    generator: str
    findings: tuple[str, ...]
    figures: tuple[Figure, ...]
    positions: tuple[tuple[float, float], ...]
    attribution: Attribution
    notes: tuple[str, ...]
    duration_s: float
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def verdict(self) -> Verdict:
        """Off when any figure is; agrees when all do."""
        found = {one.verdict for one in self.figures}
        if Verdict.OFF in found:
            return Verdict.OFF
        return Verdict.UNSURE if Verdict.UNSURE in found else Verdict.AGREES


def verify(plan: Plan, server: Server, settings: Settings, tell: Tell = silent) -> Verification:
    """Send the plan's load and judge what comes back.

    Args:
        tell: told what is being done.

    Raises:
        InputError: a plan whose files are missing, a server that does not answer, cannot run the plan or
            breaks, a load generator that fails, or time that is over.
    """
    end_s = time.monotonic() + settings.limit_s
    info = server.info()
    tell("loading profiles and pricing steps")
    ready = planned(plan, settings.files)
    prompts = None if settings.prompts is None else read_prompts(settings.prompts, MOST_REQUESTS).prompts
    tell("simulating the load")
    sent, cut = _affordable(ready, settings, prompts)
    before = server.metrics(info.engine)
    refuse(server, info, ready, sent, before)
    findings = mismatches(server, info, ready, before)
    tell("warming the server up")
    warm_up(server, info, sent, end_s - time.monotonic(), settings.api_key)
    sending = partial(tell, f"sending {len(sent):,} requests")
    sending()
    log_at = log_size(settings.step_log)
    window, traffic = _measured(server, info, ready, sent, settings, end_s, sending)
    step_s = None if settings.step_log is None else read_step_log(settings.step_log, log_at)
    tell("judging what came")
    forecast = Forecast(ready, sent, traffic)
    predicted = forecast.run()
    measured = measurements(window, traffic, sent.concurrency, predicted.ttft_s, step_s)
    attribution = attribute(
        forecast, predicted, measured, settings.bounds, k_changes=ready.k_changes, spec=ready.spec
    )
    return Verification(
        plan=plan,
        server=info,
        load=f"{load_words(ready.setup.scenario)}, {len(sent):,} requests",
        generator=traffic.source,
        findings=(*findings, *disturbances(window, traffic)),
        figures=judge(predicted.figures, measured.figures, settings.bounds),
        positions=positions(predicted.chances, measured),
        attribution=attribution,
        notes=(
            *ready.notes,
            *cut,
            *_notes(ready, sent, traffic, measured, predicted),
            *_merged(window, traffic),
        ),
        duration_s=traffic.duration_s,
    )


def _affordable(
    ready: Planned, settings: Settings, prompts: tuple[Prompt, ...] | None
) -> tuple[Demand, tuple[str, ...]]:
    """The requests, fewer where the time would not do, and a note when it would not.

    Raises:
        InputError: the requests asked for, or FEWEST of them, take longer than the limit.
    """
    n = settings.requests
    if n is None:
        n = requests_by_default(ready, prompts, settings.bounds["acceptance"])
    sent = demand(ready, n, prompts)
    expected_s = Forecast(ready, sent, replications=1).run().duration_s
    if expected_s <= SHARE * settings.limit_s:
        return sent, ()
    fewer = int(n * SHARE * settings.limit_s / expected_s)
    clients = ready.setup.scenario.concurrency or 0
    if settings.requests is not None or fewer < max(FEWEST, clients):
        raise InputError(
            "--limit-s", settings.limit_s, f"{n} requests are predicted to take {expected_s:.0f} s",
            "raise it, or send fewer --requests",
        )  # fmt: skip
    return demand(ready, fewer, prompts), (f"{fewer} requests instead of {n}, to stay within --limit-s",)


def _measured(
    server: Server,
    info: ServerInfo,
    ready: Planned,
    sent: Demand,
    settings: Settings,
    end_s: float,
    sending: Callable[[int, int], None],
) -> tuple[Window, Traffic]:
    """Send the load between two looks at the counters; ``sending`` is told what is answered, of how many."""
    command = command_of(info.engine, settings.engine_python) if takes(info.engine, sent) else None
    target = Target(
        server.url, info.engine, info.model, settings.tokenizer or info.root or info.model, settings.api_key
    )
    before = server.metrics(info.engine)
    left_s = end_s - time.monotonic()
    if command is None:
        traffic = send(server, info, sent, left_s, settings.api_key, told=sending)
    else:
        traffic = run_load(command, target, sent, ready.setup.scenario.model_dump(), left_s)
    window = Window(before, _settled(server, info, before, len(sent)))
    server.check_same(info)
    return window, traffic


def _settled(server: Server, info: ServerInfo, before: Snapshot, requests: int) -> Snapshot:
    """The counters once they have the last request, or after SETTLE_S as they are."""
    end_s = time.monotonic() + SETTLE_S
    while True:
        after = server.metrics(info.engine)
        counted = Window(before, after).grown("e2e_requests") if after.has("e2e_requests") else 0
        if counted >= requests or time.monotonic() > end_s:
            return after
        time.sleep(LOOK_S)


def _notes(
    ready: Planned, sent: Demand, traffic: Traffic, measured: Measurements, predicted: Predicted
) -> list[str]:
    notes = [f"sent by {traffic.source}"]
    if sent.prompts is None and "drafted" in predicted.figures:
        notes.append(
            "the prompts were random tokens: what is accepted on them need not be what your requests accept; "
            "give --prompts"
        )
    if measured.accepted_at and measured.k is None:
        notes.append(
            "K changed from step to step: the server counts accepted drafts by position, not those drafted, "
            "so only the first position is compared"
        )
    if sent.prompts is None and ready.setup.log is not None and ready.setup.log.prefix is not None:
        notes.append("no two prompts shared a beginning, as the log's do: neither did the simulated ones")
    if traffic.start_s is None and sent.arrival_s is not None:
        notes.append("the load generator does not say when it sent what: arrivals are predicted as planned")
    return notes


def _merged(window: Window, traffic: Traffic) -> list[str]:
    """A note where the client saw fewer messages than there were steps."""
    steps, seen = window.grown("emissions"), int(traffic.chunks.sum())
    if window.grown("ttft_requests") != len(traffic) or steps == seen:
        return []
    return [
        f"the client saw {seen:,} messages of {steps:,.0f} steps: some were merged, so its ITL is longer "
        "than a step"
    ]
