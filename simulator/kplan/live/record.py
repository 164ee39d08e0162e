"""Record what a running server accepts: prompts driven, answers kept row by row, counters compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kplan.acceptance import ImportOptions, TraceSet, load_acceptance, save_traces
from kplan.acceptance.jsonl import Progress, silent
from kplan.errors import InputError
from kplan.interrupts import shielded
from kplan.live.dialect import Dialect, Sampling, dialect_of
from kplan.live.generate import Answer, Closed, Driven, Limits, Open, drive
from kplan.live.metrics import Snapshot, Window
from kplan.live.prompts import Prompt, Prompts, tokenize
from kplan.live.recording import Recording, open_recording, row_of
from kplan.live.route import Route, Speculation, better, choose_route, need_speculation, speculation_of
from kplan.live.server import Server, ServerInfo
from kplan.live.tally import Check, Tally, check, soundness
from kplan.provenance import Kind, Provenance, versions

PROBE_TOKENS = 32
"""Output of the first request, which shows what the server tells, and warms it up."""
_GO_ON = "the same command goes on"
_PROBE_TEXT = "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over"


@dataclass(frozen=True)
class Asked:
    """What is to be recorded.

    Attributes:
        url: of the server.
        prompts: what is asked, in order.
        sampling, load, limits: how.
        rows: JSONL to write, or to go on with.
        trace: trace to make of it (parquet), None for none.
        proposer: kplan's name of what drafts, None where the server tells.
        plain: the server may be one without speculation.
        restart: begin anew, whatever ``rows`` holds.
        api_key: of the server.
    """

    url: str
    prompts: Prompts
    sampling: Sampling
    load: Closed | Open
    rows: Path
    trace: Path | None = None
    proposer: str | None = None
    plain: bool = False
    restart: bool = False
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None


@dataclass(frozen=True)
class Recorded:
    """What was recorded.

    Attributes:
        info, speculation, route, proposer: of the server.
        better: what to restart it with for a better route, "" for none.
        rows: answers in the file, of ``asked`` prompts; ``added`` of them by this run.
        driven: what else happened.
        checks: of this run; empty where nothing was left to ask.
        chunks_are_steps: no chunk holds several steps, by the counters or by the steps that are listed.
        sound: False when a check of any run failed, None when one could not be made.
        tally: over all rows.
        totals: counters of this run, of the route that has nothing else; None otherwise.
        traces: what was written as the trace; None where none was.
    """

    info: ServerInfo
    speculation: Speculation
    route: Route
    proposer: str | None
    better: str
    rows: int
    asked: int
    added: int
    driven: Driven
    checks: tuple[Check, ...]
    chunks_are_steps: bool
    sound: bool | None
    tally: Tally
    totals: Window | None
    traces: TraceSet | None


def record(asked: Asked, progress: Progress = silent) -> Recorded:
    """Ask every prompt that the file does not answer yet, and write the trace.

    Args:
        progress: told how many prompts are answered, of how many.

    Raises:
        InputError: no server, one without speculation, one that breaks or falls silent; a file of other
            settings; a trace that the route cannot give. Rows written until then stay, and are gone on with.
    """
    with Server(asked.url, asked.api_key) as server:
        info = server.info()
        metrics = _metrics(server, info)
        spec = speculation_of(server, info, metrics)
        if not asked.plain:
            need_speculation(server.url, info, spec)
        run = _Run(server, info, spec, asked, counted=metrics is not None)
        return run.all(progress)


class _Run:
    def __init__(
        self, server: Server, info: ServerInfo, spec: Speculation, asked: Asked, *, counted: bool
    ) -> None:
        self.server, self.info, self.spec, self.asked, self.counted = server, info, spec, asked, counted
        self.dialect: Dialect = dialect_of(info.engine, info.model)
        self.proposer = asked.proposer or spec.proposer
        self.route = choose_route(info, spec, self._probe(), self.proposer)
        self.better = better(info, self.route, spec)

    def all(self, progress: Progress) -> Recorded:
        asked = self.asked
        if asked.trace is not None:
            self._need_trace()
        with open_recording(asked.rows, self._settings(), restart=asked.restart) as recording:
            return self._recorded(recording, progress)

    def _recorded(self, recording: Recording, progress: Progress) -> Recorded:
        asked = self.asked
        self._drop_unsound(recording)
        left = [p for p in asked.prompts.prompts if p.index not in recording.rows]
        kept = len(recording.rows)
        driven, checks, window = Driven(), list[Check](), None
        if left:
            driven, checks, window = self._drive(recording, left, progress)
        recording.sort()
        tally = Tally()
        for row in recording.read():
            tally.add(row)
        sound = recording.sound
        traces = self._write_trace(recording, sound)
        return Recorded(
            info=self.info,
            speculation=self.spec,
            route=self.route,
            proposer=self.proposer,
            better=self.better,
            rows=len(recording.rows),
            asked=len(asked.prompts.prompts),
            added=len(recording.rows) - kept,
            driven=driven,
            checks=tuple(checks),
            chunks_are_steps=recording.passed("chunks") or tally.steps == tally.chunks - tally.requests,
            sound=sound,
            tally=tally,
            totals=window if self.route is Route.TOTALS else None,
            traces=traces,
        )

    def _probe(self) -> Mapping[str, Any]:
        """The engine's words on a first, short request."""
        given = next((p.token_ids for p in self.asked.prompts.prompts if p.token_ids is not None), None)
        prompt = Prompt(0, text=_PROBE_TEXT) if given is None else Prompt(0, token_ids=given[:16])
        answers: list[Answer] = []
        sampling = replace(self.asked.sampling, max_tokens=PROBE_TOKENS, ignore_eos=True)
        driven = self._send([prompt], sampling, Closed(1), answers.append)
        if driven.refused:
            bound = f"refuses a first request ({driven.refused[0][1]})"
            raise InputError("--url", self.server.url, bound, "look at the server's log")
        if not answers:
            limit_s = self.asked.limits.run_s
            raise InputError("--limit-s", limit_s, "a first request was not answered by then", "raise it")
        return answers[0].told

    def _send(
        self, prompts: list[Prompt], sampling: Sampling, load: Closed | Open, take: Callable[[Answer], None]
    ) -> Driven:
        if self.info.engine == "sglang":
            prompts = tokenize(self.server, prompts)
        key, limits = self.asked.api_key, self.asked.limits
        return drive(self.server.url, self.dialect, prompts, sampling, load, take, limits=limits, api_key=key)

    def _need_trace(self) -> None:
        """Raise InputError when no trace can come of it, before a minute is spent."""
        trace = str(self.asked.trace)
        if self.route is Route.NONE:
            fix = "name a .jsonl file, and replay lookups over it with kplan traces replay"
            raise InputError("--out", trace, "without speculation there is no acceptance to trace", fix)
        if self.route is Route.TOTALS:
            raise InputError("--out", trace, "the server tells of no single step", self.better)
        if self.proposer is None:
            fix = "for example --proposer eagle3"
            raise InputError("--proposer", "nothing", "vLLM does not tell what drafts", fix)

    def _settings(self) -> dict[str, Any]:
        """What every run of one recording shares."""
        asked, info = self.asked, self.info
        load = asdict(asked.load)
        return {
            "engine": info.engine,
            "version": info.version,
            "model": info.model,
            "prompts": asked.prompts.source,
            "prompts_digest": asked.prompts.digest,
            "synthetic": asked.prompts.synthetic,
            "route": str(self.route),
            "k": self.spec.k,
            "proposer": self.proposer,
            **asdict(asked.sampling),
            "concurrency": load.get("concurrency"),
            "qps": load.get("qps"),
        }

    def _drop_unsound(self, recording: Recording) -> None:
        """Chunks alone are worth what the counters say of them: rows that they did not confirm go."""
        for run in sorted(set(recording.rows.values())):
            if self._needs_counters and recording.soundness(run) is not True:
                recording.drop_run(run)

    @property
    def _needs_counters(self) -> bool:
        return self.route is Route.GROWTH and self.info.engine == "vllm"

    def _drive(
        self, recording: Recording, left: list[Prompt], progress: Progress
    ) -> tuple[Driven, list[Check], Window | None]:
        total, tally = len(self.asked.prompts.prompts), Tally()
        recording.begin_run({"began": datetime.now(UTC).isoformat(timespec="seconds"), **versions()})
        before = self._settled()

        def take(answer: Answer) -> None:
            row = row_of(answer)
            recording.append(answer.prompt.index, row)
            tally.add(row)
            progress(len(recording.rows), total)

        progress(len(recording.rows), total)
        try:
            driven = self._send(left, self.asked.sampling, self.asked.load, take)
        except InputError as error:
            with suppress(InputError):  # the disk may be full
                recording.close_run({"end": str(error), "sound": None})
            fix = f"{error.fix}; {_GO_ON}" if error.fix else _GO_ON
            told = f"{error.bound}; {self._kept(recording, total)}"
            raise InputError(error.what, error.value, told, fix) from None
        except (KeyboardInterrupt, SystemExit) as ended:
            with shielded():
                recording.close_run({"end": "interrupted", "sound": None})
            ended.add_note(f"{self._kept(recording, total)}; {_GO_ON}")
            raise
        window, checks = self._compare(before, tally, driven)
        recording.close_run(
            {
                "end": "out of time" if driven.out_of_time else "done",
                "answered": driven.answered,
                "broken": driven.broken,
                "refused": driven.refused[:100],
                "checks": [one.record() for one in checks],
                "sound": soundness(checks),
            }
        )
        return driven, checks, window

    def _kept(self, recording: Recording, total: int) -> str:
        return f"{len(recording.rows)} of {total} answers are in {self.asked.rows}"

    def _compare(
        self, before: Snapshot | None, tally: Tally, driven: Driven
    ) -> tuple[Window | None, list[Check]]:
        try:
            after = self._settled()
            window = None if before is None or after is None else Window(before, after)
            every_step_k = self.spec.k if self._needs_counters else None
            found = check(tally, window, driven.broken, every_step_k)
        except InputError as error:  # it was started anew, is gone, or counts no more what it counted
            return None, [Check("counters", False, str(error))]
        try:
            self.server.check_same(self.info)
        except InputError as error:
            found.append(Check("same server", False, error.bound))
        return window, found

    def _settled(self) -> Snapshot | None:
        return self.server.settled_metrics(self.info.engine) if self.counted else None

    def _write_trace(self, recording: Recording, sound: bool | None) -> TraceSet | None:
        trace = self.asked.trace
        if trace is None or not recording.rows or (self._needs_counters and sound is not True):
            return None
        k = self.spec.k if self.route is Route.GROWTH else None
        options = ImportOptions(self.proposer, k, tokenizer=self.info.model)
        found = load_acceptance(recording.path, options=options)
        if not isinstance(found, TraceSet):
            raise InputError("--out", str(trace), "no request's steps could be placed", self.better)
        notes = [] if sound is not False else ["the server's counters contradict the answers"]
        if self.asked.prompts.synthetic:
            notes.append("the prompts were random tokens: this acceptance says nothing of text")
        source = f"kplan record of {self.info}; prompts: {self.asked.prompts.source}"
        note = f"steps that a server took, by {self.route}; temperature {self.asked.sampling.temperature:g}"
        traces = replace(
            found, provenance=Provenance(Kind.MEASURED, source, note), notes=(*found.notes, *notes)
        )
        save_traces(traces, trace)
        return traces


def _metrics(server: Server, info: ServerInfo) -> Snapshot | None:
    """The counters; None where an SGLang server shows none."""
    try:
        return server.metrics(info.engine)
    except InputError:
        if info.engine == "vllm":
            raise
        return None
