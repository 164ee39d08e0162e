"""Where the requests of a scenario come from: a request log, recorded traces, or a workload's models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kplan.acceptance import ProposerTrace, TraceSet, load_traces, need_every_position
from kplan.acceptance.joint import proposers_of
from kplan.config.scenario import Scenario
from kplan.errors import InputError
from kplan.profiles import Drafter, Model
from kplan.simulate.mix import aligned_rows
from kplan.workload import Prefix, RequestLog, Workload, load_log, load_workload, session_prefix

POOL = 4096
"""Distinct requests generated from a fitted model; longer runs draw from them again."""
SETTLE_SHARE = 0.95
"""A load has settled when requests that carry this share of the output tokens could have come and gone."""

Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class MeanLengths:
    """Tokens: mean output, output below which SETTLE_SHARE of all tokens lie, mean context of a token, and
    the longest prompt and output together."""

    output: float
    longest_output: float
    context: float
    longest_request: int


def mean_lengths(prompt_len: Ints, output_len: Ints) -> MeanLengths:
    """Averages of (n,) prompt and output lengths."""
    out = output_len.astype(np.float64)
    ordered = np.sort(out)
    longest = ordered[np.searchsorted(np.cumsum(ordered), SETTLE_SHARE * ordered.sum())]
    context = float((out * (prompt_len + out / 2)).sum() / out.sum())
    return MeanLengths(float(out.mean()), float(longest), context, int((prompt_len + out).max()))


@dataclass(frozen=True)
class Source:
    """Requests that a server of ``max_len`` tokens admits.

    Attributes:
        workload: None with recorded traces.
        recorded: None when the workload's fitted models generate acceptance.
        log: the request log, without what the server refuses; None: lengths are the workload's or recorded.
        max_len: longest prompt and output together (max_model_len), None without a bound.
        refused: share of the requests whose prompt leaves no room for a token.
        cut: share of them whose output ends at ``max_len``.
        lengths: what the requests are like on average.
    """

    workload: Workload | None
    recorded: TraceSet | None
    log: RequestLog | None
    max_len: int | None
    refused: float
    cut: float
    lengths: MeanLengths

    def admit(self, prompt_len: Ints, output_len: Ints) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows that the server admits, and their output as far as it goes."""
        return admitted(prompt_len, output_len, self.max_len)


def admitted(
    prompt_len: Ints, output_len: Ints, max_len: int | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(m,) rows whose prompt leaves room for a token, and their output lengths cut at ``max_len``."""
    output = output_len.astype(np.int64)
    if max_len is None:
        return np.arange(len(output)), output
    rows = np.flatnonzero(prompt_len < max_len)
    return rows, np.minimum(output[rows], max_len - prompt_len[rows])


def read_source(scenario: Scenario, model: Model, drafter: Drafter) -> Source:
    """Read the log, traces or workload that ``scenario`` names.

    Raises:
        InputError: a name that is not known, a file that cannot be read, a context that the model does not
            have, one that no request fits, or a log without a rate.
    """
    max_len = _max_len(scenario, model)
    recorded = load_traces(scenario.traces, scenario.dataset) if scenario.traces else None
    if recorded is not None:
        names = proposers_of(scenario.proposer)
        for name in names:
            proposer_trace(recorded, name)
        if len(names) > 1:
            recorded = aligned_rows(recorded, names)
        if scenario.output_tokens is not None:
            raise InputError(
                "--output-tokens", scenario.output_tokens, "recorded traces have their own output lengths",
                "leave it out, or leave out --traces",
            )  # fmt: skip
    workload = None if recorded is not None else load_workload(scenario.workload).drafted_by(drafter)
    log = _read_log(scenario)
    prompt, output = _lengths(scenario, recorded, workload, log)
    rows, cut = admitted(prompt, output, max_len)
    if not len(rows):
        longer = (
            "use a model of a longer context" if scenario.max_model_len is None else "raise --max-model-len"
        )
        raise InputError(
            "prompt tokens", int(prompt.min()), f"every prompt reaches the context of {max_len} tokens",
            f"{longer}, or use shorter prompts",
        )  # fmt: skip
    if log is not None:
        log = replace(_only(log, rows), output_len=cut)
        if not np.isfinite(log.mean_qps):
            what = "its requests" if len(rows) == len(prompt) else "its requests that fit the context"
            raise InputError(
                "--replay", str(scenario.replay), f"{what} all come at one moment, so there is no rate",
                "give a log that lasts, or --concurrency",
            )  # fmt: skip
    return Source(
        workload=workload,
        recorded=recorded,
        log=log,
        max_len=max_len,
        refused=1 - len(rows) / len(prompt),
        cut=float((cut < output[rows]).sum()) / len(prompt),
        lengths=mean_lengths(prompt[rows], cut),
    )


def proposer_trace(traces: TraceSet, name: str) -> ProposerTrace:
    """The trace of that proposer, of several joined the last. Raises InputError naming those there are."""
    name = proposers_of(name)[-1]
    if name not in traces.proposers:
        have = ", ".join(sorted(traces.proposers))
        raise InputError("--proposer", name, "is not in the trace file", f"it has: {have}")
    need_every_position(traces.proposers[name], "a simulation")
    return traces.proposers[name]


def _max_len(scenario: Scenario, model: Model) -> int | None:
    """The context that the server is started with. Raises InputError when the model has none so long."""
    asked = scenario.max_model_len
    if asked is not None and model.max_context is not None and asked > model.max_context:
        raise InputError(
            "--max-model-len", asked, f"{model.name} has a context of {model.max_context} tokens",
            "leave it out, or lower it",
        )  # fmt: skip
    return model.max_context if asked is None else asked


def _read_log(scenario: Scenario) -> RequestLog | None:
    """The log as far as it is replayed, with what its prompts share (None where nothing is cached)."""
    if scenario.replay is None:
        return None
    log = load_log(scenario.replay, scenario.columns)
    if scenario.requests is not None:
        log = log.first(scenario.requests)
    if not scenario.prefix_caching:
        return replace(log, prefix=None)
    if log.prefix is None and log.follows is not None:
        return replace(log, prefix=session_prefix(log, SESSION_UNIT))
    return log


SESSION_UNIT = 16
"""Tokens of a unit of shared history where the log has no hashes: the block of the engines' prefix caches."""


def _only(log: RequestLog, rows: NDArray[np.int64]) -> RequestLog:
    """The requests ``rows`` of a log; a turn whose predecessor is left out waits for the one before that."""
    if len(rows) == len(log):
        return log
    follows = log.follows
    if follows is not None:
        number = np.full(len(log), -1, np.int64)
        number[rows] = np.arange(len(rows))
        nearest = np.empty(len(log), np.int64)  # itself where it is kept, else the nearest turn before
        for i, before in enumerate(follows):
            nearest[i] = i if number[i] >= 0 else (nearest[before] if before >= 0 else -1)
        before = follows[rows]
        kept = np.where(before >= 0, nearest[before], -1)
        follows = np.where(kept >= 0, number[kept], -1)
    prefix = log.prefix
    return replace(
        log,
        t_s=log.t_s[rows] - log.t_s[rows[0]],
        prompt_len=log.prompt_len[rows],
        output_len=log.output_len[rows],
        follows=follows,
        think_s=None if log.think_s is None else log.think_s[rows],
        prefix=None if prefix is None else rows_of(prefix, rows),
    )


def rows_of(prefix: Prefix, rows: NDArray[np.int64]) -> Prefix:
    """The units of the requests ``rows``, in that order."""
    counts = np.diff(prefix.offsets)[rows]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    at = np.repeat(prefix.offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
    return Prefix(prefix.unit_tokens, prefix.ids[at], offsets)


def _lengths(
    scenario: Scenario, recorded: TraceSet | None, workload: Workload | None, log: RequestLog | None
) -> tuple[Ints, Ints]:
    """Prompt and output lengths that stand for the load."""
    prompt: Ints
    output: Ints
    if log is not None:
        return log.prompt_len, log.output_len
    if recorded is not None:
        prompt, output = recorded.prompt_len, proposer_trace(recorded, scenario.proposer).output_len
    else:
        assert workload is not None
        prompt, output = workload.sample_lengths(scenario.seed, POOL)
    if scenario.prompt_tokens is not None:
        prompt = np.full_like(prompt, scenario.prompt_tokens)
    if scenario.output_tokens is not None:
        output = np.full_like(output, scenario.output_tokens)
    return prompt, output
