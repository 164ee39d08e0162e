"""A plan's own load on one server: which requests, when, and what of them the server accepts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace, walk
from kplan.acceptance.columns import pack
from kplan.config.plan import Plan
from kplan.config.scenario import Scenario, make_scenario
from kplan.config.shipped import trace_path
from kplan.errors import InputError
from kplan.live.prompts import Prompt
from kplan.profiles import Calibration, load_calibration
from kplan.provenance import file_digest
from kplan.registry import PolicySpec, parse_policy, refuse_code
from kplan.rng import stream
from kplan.simulate import Setup, default_requests, draw_requests, prepare
from kplan.simulate.source import proposer_trace

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]

MOST_REQUESTS = 20_000
"""Most requests that are sent."""
PROBED, SIGMAS = 400, 2.5
"""Requests whose spread decides how many are sent, and half an interval over the standard error."""


@dataclass(frozen=True)
class Files:
    """Files that stand for those a plan names; a plan keeps a name and a hash of their bytes.

    Attributes:
        folder: of the plan, where they are looked for first.
        traces, replay, calibration: given instead.
    """

    folder: Path
    traces: Path | None = None
    replay: Path | None = None
    calibration: str | None = None


@dataclass(frozen=True)
class Planned:
    """A plan on one of its replicas.

    Attributes:
        setup: with all names resolved.
        calibration: that its steps are priced with.
        spec: the policy that the server runs.
        notes: where the load of one server is not the plan's own words.
    """

    plan: Plan
    setup: Setup
    calibration: Calibration
    spec: PolicySpec
    notes: tuple[str, ...]

    @property
    def drafts(self) -> bool:
        """Whether the plan speculates at all."""
        return self.spec.name != "off"

    @property
    def largest_k(self) -> int:
        """Drafts that the server is started with: the largest K of the answer."""
        answer = self.plan.answer
        if answer.table is not None:
            return max((entry.k for entry in answer.table), default=0)
        return self.setup.scenario.max_k if answer.k is None else answer.k

    @property
    def k_changes(self) -> bool:
        """Whether K may differ from step to step."""
        return self.plan.answer.k is None


@dataclass(frozen=True)
class Demand:
    """Requests in the order in which they are sent.

    Attributes:
        prompt_len, output_len: (n,) tokens.
        arrival_s: (n,) seconds from the start; None where clients wait for their answers.
        concurrency: clients, each with one request at a time; None in an open loop.
        rows: (n,) the recorded trace of each; None where a model generates acceptance.
        prompts: (n,) what is asked; None: random tokens.
    """

    prompt_len: I64
    output_len: I64
    arrival_s: F64 | None
    concurrency: int | None
    rows: I64 | None
    prompts: tuple[Prompt, ...] | None

    def __len__(self) -> int:
        return len(self.output_len)


def planned(plan: Plan, files: Files) -> Planned:
    """Resolve what a plan names.

    Raises:
        InputError: a file of the plan is not there or is another one, a load that no load generator offers,
            or a name that is not known.
    """
    refuse_code(plan.answer.policy, "the plan")
    scenario, notes = _scenario(plan, files)
    if scenario.think_s > 0:
        raise InputError(
            "plan", f"think_s {scenario.think_s:g}", "no load generator pauses between requests",
            "plan for --qps, or for --concurrency without pauses",
        )  # fmt: skip
    setup = prepare(scenario)
    if setup.log is not None and setup.log.follows is not None:
        raise InputError(
            "plan", str(scenario.replay), "no load generator waits for the turn before",
            "verify a plan of a log without sessions",
        )  # fmt: skip
    calibration = load_calibration(scenario.calibration or setup.hardware)
    return Planned(plan, setup, calibration, parse_policy(plan.answer.policy), tuple(notes))


def _scenario(plan: Plan, files: Files) -> tuple[Scenario, list[str]]:
    asked, replicas, notes = plan.question, plan.answer.replicas, list[str]()
    values: dict[str, Any] = asked.model_dump(exclude={"replay_hash", "traces_hash", "replicas"})
    values = {key: value for key, value in values.items() if value not in (None, {})}
    if asked.qps is None or asked.replay is not None:  # clients and logs have arrivals of their own
        values = {key: value for key, value in values.items() if key not in ("arrivals", "burstiness")}
    values |= {"policy": plan.answer.policy, "replicas": 1, "replications": 1}
    if asked.qps is not None:
        values["qps"] = asked.qps / replicas
    if asked.concurrency is not None:
        values["concurrency"] = max(1, asked.concurrency // replicas)
    if asked.ramp_to_qps is not None:
        values["ramp_to_qps"] = asked.ramp_to_qps / replicas
    if replicas > 1:
        if asked.replay is not None and asked.qps is None:
            raise InputError(
                "plan", f"{replicas} replicas of {asked.replay}", "one server gets no share of a log",
                "plan with --replicas 1, or with --qps",
            )  # fmt: skip
        notes.append(f"the plan has {replicas} replicas: this server is given one replica's share")
    if asked.traces is not None:
        values["traces"] = _file("--traces", files.traces, asked.traces, asked.traces_hash, files.folder)
    if asked.replay is not None:
        values["replay"] = _file("--replay", files.replay, asked.replay, asked.replay_hash, files.folder)
    if files.calibration is not None:
        values["calibration"] = files.calibration
    elif asked.calibration and (files.folder / asked.calibration).is_file():
        values["calibration"] = str(files.folder / asked.calibration)
    values.pop("requests", None)
    return make_scenario(values, "plan"), notes


def _file(flag: str, given: Path | None, name: str, digest: str | None, folder: Path) -> Path:
    """Where a file of the plan is: given, beside it, or one that comes with kplan.

    Raises InputError when it is not found, or is another one.
    """
    shipped = trace_path(given or Path(Path(name).stem))
    places = [shipped] if given is not None else [folder / name, Path(name), shipped]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(
            flag, str(places[0]), "the plan was made with it, and it is not there", f"{flag} FILE"
        )
    if digest is not None and file_digest(found) != digest:
        raise InputError(flag, str(found), "it is not the file that the plan was made with", f"{flag} FILE")
    return found


def requests_by_default(plan: Planned, prompts: tuple[Prompt, ...] | None, tolerance: float) -> int:
    """Requests sent when the user does not say.

    Those a simulation would take, more where tokens per step differ so much between requests that their mean
    would not be known to ``tolerance``, and every prompt at most once.
    """
    drawn = draw_requests(plan.setup, PROBED, plan.setup.scenario.seed)
    seen = walk(drawn.trace, plan.largest_k)
    left = seen.request_tokens - seen.acceptance_length * seen.request_steps
    spread = float(np.sqrt(np.mean(np.square(left))) / max(seen.request_tokens.mean(), 1e-9))
    known = int((SIGMAS * spread / tolerance) ** 2)
    wanted = min(max(default_requests(plan.setup), known), MOST_REQUESTS)
    return wanted if prompts is None else min(wanted, len(prompts))


def demand(plan: Planned, n: int, prompts: tuple[Prompt, ...] | None) -> Demand:
    """The first ``n`` requests of the plan's load.

    Outputs are as long as the plan's, whatever the prompt, unless the prompt's file says how long.

    Raises:
        InputError: more requests than prompts, or than MOST_REQUESTS.
    """
    if not 1 <= n <= MOST_REQUESTS:
        raise InputError("--requests", n, f"1..{MOST_REQUESTS} can be sent")
    if prompts is not None and n > len(prompts):
        raise InputError(
            "--requests", n, f"the file has {len(prompts)} prompts, and one sent twice would be cached",
            "send fewer, or add prompts",
        )  # fmt: skip
    setup = plan.setup
    drawn = draw_requests(setup, n, setup.scenario.seed)
    n = len(drawn.prompt_len)  # a log may have fewer
    output = drawn.output_len.copy()
    rows = None
    if setup.recorded is not None:
        rows = np.searchsorted(drawn.trace.offsets, drawn.trace_at)
    if prompts is not None:
        given = np.array([one.max_tokens or 0 for one in prompts[:n]])
        output = np.where(given > 0, given, output)
        if rows is not None:
            output = np.minimum(output, int(drawn.trace.output_len.max()))
    return Demand(
        prompt_len=drawn.prompt_len,
        output_len=output,
        arrival_s=None if setup.rate is None else drawn.unit_arrival_s / setup.rate,
        concurrency=setup.scenario.concurrency,
        rows=rows,
        prompts=None if prompts is None else prompts[:n],
    )


def acceptance_of(plan: Planned, sent: Demand, replication: int) -> ProposerTrace:
    """What the plan expects the server to accept of the requests sent, one of several draws.

    The first draw of recorded traces is the rows that the lengths were taken from; the others take any row
    whose output is as long.
    """
    setup, seed = plan.setup, plan.setup.scenario.seed + replication
    if setup.recorded is None:
        assert setup.workload is not None
        traces = setup.workload.joint(setup.scenario.proposer).generate(seed, sent.output_len)
        return list(traces.values())[-1]
    trace = proposer_trace(setup.recorded, setup.scenario.proposer)
    assert sent.rows is not None
    rows = sent.rows
    short = trace.output_len[rows] < sent.output_len
    if replication or short.any():
        order = np.argsort(trace.output_len, kind="stable")
        first = np.searchsorted(trace.output_len[order], sent.output_len)
        draw = stream(seed, "rows of a server").random(len(rows))
        other = order[first + (draw * (len(order) - first)).astype(np.int64)]
        rows = other if replication else np.where(short, other, rows)
    begin = trace.offsets[rows]
    pieces = [slice(int(at), int(at + n)) for at, n in zip(begin, sent.output_len, strict=True)]
    drafted = trace.drafted
    return pack(
        [trace.acc[piece] for piece in pieces],
        None if drafted is None else [drafted[piece] for piece in pieces],
        np.ones(len(rows), np.bool_),
        trace.recorded_k,
    )
