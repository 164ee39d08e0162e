"""Fit a calibration of the machine at hand: drive its server, read its step log, fit, test on held-out loads.

With a step log a row is the median step of one setting. Without one it is a closed loop's time per output
token, as the client saw it, with the acceptance that the server counted meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from kplan.errors import InputError
from kplan.files import write_text
from kplan.latency.fit_steps import read_steps
from kplan.latency.fit_tpot import TpotRow
from kplan.latency.observed import Observation, Predictor, Served, medians
from kplan.live.server import Server, ServerInfo
from kplan.live.steplog import log_size
from kplan.live.sweep import Driver, Lap, Setting
from kplan.profiles import Calibration
from kplan.telling import Tell, silent

LEAST_STEPS = 6
"""Steps of a setting below which its median is not used."""
FULL = 0.75
"""Share of a setting's requests that a step must hold: one that ended is missing until its client sends the
next. What a step held is known, so that none is taken for another."""

ELAPSED_ONLY = (
    "the server's own log tells how long the engine waited for its workers, without scheduling: steps take "
    "longer (kplan steplog install logs them whole)"
)


@dataclass(frozen=True)
class Plan:
    """What to drive a server with.

    Attributes:
        batches: requests in flight, of each setting.
        held_out: those of them that are measured and left out of the fit.
        prompts: prompt lengths in tokens; every batch is run with each.
        output_tokens: of every request.
        repeats: times that each setting is run, spread over the whole time; the fastest of them counts, as
            whatever else a machine does only ever adds time.
        limit_s: time for all of it.
        steplog: the server's step log, None to go by the times of the requests.
        proposer: kplan's name of what the server drafts with, None without speculation.
        save: file of the rows that may be fitted, written after every setting, None for none.
    """

    batches: tuple[int, ...]
    held_out: frozenset[int]
    prompts: tuple[int, ...]
    output_tokens: int
    repeats: int
    limit_s: float
    steplog: Path | None
    proposer: str | None
    save: Path | None = None

    def settings(self) -> list[Setting]:
        """Every batch at the first prompt length, then at the others, so that a time limit cuts these."""
        return [
            Setting(batch, prompt, self.output_tokens) for prompt in self.prompts for batch in self.batches
        ]


@dataclass(frozen=True)
class Seen:
    """Rows of a server.

    Attributes:
        fitted, held: rows to fit on, and to test on.
        notes: what was left out.
    """

    fitted: tuple[Observation, ...]
    held: tuple[Observation, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RowError:
    """One row as it was measured and as it is predicted. Times in seconds."""

    row: Observation
    held: bool
    predicted_s: float

    @property
    def relative(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.row.seconds - 1.0


def measure(server: Server, info: ServerInfo, vocab: int, plan: Plan, tell: Tell = silent) -> Seen:
    """Drive the server through the plan.

    Args:
        vocab: token ids below it are prompts.

    Raises:
        InputError: the server is not reached or breaks off, the time is too short, or the log does not grow.
    """
    longest = max(plan.prompts) + plan.output_tokens
    if info.max_model_len is not None and longest > info.max_model_len:
        raise InputError(
            "--prompt-tokens",
            max(plan.prompts),
            f"with {plan.output_tokens} of output exceeds the server's {info.max_model_len}",
            "ask for shorter ones",
        )
    log_size(plan.steplog)
    driver = Driver(server, info, vocab, lambda: log_size(plan.steplog), plan.limit_s)
    settings = plan.settings()
    tell("warming the server up")
    driver.warm_up(settings[0])
    driver.warm_up(max(settings, key=lambda one: one.batch))
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    source = f"{info.engine} {info.version} serving {Path(info.model).name} (measured {day})"
    notes = [ELAPSED_ONLY] if plan.steplog is not None and _is_server_log(plan.steplog) else []
    laps: dict[Setting, list[_Rows]] = {}
    try:
        for lap in driver.laps(settings * plan.repeats, tell):
            laps.setdefault(lap.setting, []).append(_rows(lap, plan, source))
            if plan.save is not None:
                save_rows(_seen(laps, plan, notes), plan.save)
        server.check_same(info)
    except InputError as error:
        if not (kept := _kept(laps, plan)):
            raise
        fix = f"{error.fix}; {kept}" if error.fix else kept
        raise InputError(error.what, error.value, error.bound, fix) from None
    except (KeyboardInterrupt, SystemExit) as ended:
        if kept := _kept(laps, plan):
            ended.add_note(kept)
        raise
    if not laps:
        raise InputError("--limit-s", f"{plan.limit_s:g}", "is used up by warming up", "give it minutes")
    if len(laps) < len(settings):
        notes.append(
            f"{len(settings) - len(laps)} of {len(settings)} settings did not fit into {plan.limit_s:g} s"
        )
    return _seen(laps, plan, notes)


def _kept(laps: Mapping[Setting, list[_Rows]], plan: Plan) -> str:
    """What an early end leaves, "" of nothing."""
    if plan.save is None or not laps:
        return ""
    return (
        f"the rows of {len(laps)} of {len(plan.settings())} settings are in {plan.save}: a later call takes "
        "them with --steps"
    )


def _seen(laps: Mapping[Setting, list[_Rows]], plan: Plan, notes: Sequence[str]) -> Seen:
    """The fastest lap of each setting."""
    fitted: list[Observation] = []
    held: list[Observation] = []
    left_out: list[str] = []
    for setting, run in laps.items():
        told = [lap for lap in run if lap.rows]
        if told:
            fastest = min(told, key=lambda lap: lap.typical_s)
            (held if setting.batch in plan.held_out else fitted).extend(fastest.rows)
        else:
            left_out.append(run[-1].left_out)
    return Seen(tuple(fitted), tuple(held), (*notes, *left_out))


def errors(served: Served, seen: Seen, calibration: Calibration) -> list[RowError]:
    """Every row beside what the calibration predicts for it; the fitted ones first."""
    rows = [*seen.fitted, *seen.held]
    predicted = Predictor(served, rows).seconds(calibration)
    return [
        RowError(row, number >= len(seen.fitted), float(seconds))
        for number, (row, seconds) in enumerate(zip(rows, predicted, strict=True))
    ]


def mean_error(rows: Iterable[RowError]) -> float | None:
    """Mean absolute relative error; None of no rows."""
    shares = [abs(row.relative) for row in rows]
    return float(np.mean(shares)) if shares else None


def save_rows(seen: Seen, path: Path) -> None:
    """Write the rows that may be fitted as a step log that ``--steps`` reads, for a fit on other rows too."""
    write_text("".join(json.dumps(_record(row)) + "\n" for row in seen.fitted), path)


def _record(row: Observation) -> dict[str, object]:
    """A row of one shape under the names of a step log."""
    names = ("decode_requests", "decode_tokens", "prefill_requests", "prefill_tokens", "prefill_kv_tokens")
    return {
        "step_s": row.seconds,
        **{name: row.mean(name) for name in names},
        "kv_tokens": row.mean("decode_kv_tokens"),
        "drafted_k": row.k,
        "proposer": row.proposer,
        "measured": f"{row.place}; {row.source}",
    }


@dataclass(frozen=True)
class _Rows:
    """What one lap tells: its rows, or why it has none."""

    rows: tuple[Observation, ...]
    typical_s: float = 0.0
    left_out: str = ""


def _rows(lap: Lap, plan: Plan, source: str) -> _Rows:
    """The rows of a lap, and the median of its steps (or of its requests' TPOT)."""
    if plan.steplog is None:
        return _by_client(lap, plan, source)
    if lap.end <= lap.begin:
        raise InputError(
            "--steplog",
            str(plan.steplog),
            "did not grow while the server worked",
            "start it with KPLAN_STEPLOG and --enable-logging-iteration-details, see kplan steplog install",
        )
    steps = read_steps(plan.steplog, begin=lap.begin, end=lap.end, proposer=plan.proposer, source=source)
    full = [row for row in steps if row.batch > FULL * lap.setting.batch and row.mean("decode_requests")]
    rows = medians(full, LEAST_STEPS)
    if not rows:
        return _Rows((), left_out=f"{lap.setting}: fewer than {LEAST_STEPS} alike steps; left out")
    return _Rows(tuple(rows), float(np.median([row.seconds for row in full])))


def _by_client(lap: Lap, plan: Plan, source: str) -> _Rows:
    """The closed loop as one row, by the client's clock."""
    setting, window = lap.setting, lap.window
    if lap.waiting:
        return _Rows((), left_out=f"{setting}: {lap.waiting} of its requests waited for a seat; left out")
    if not len(lap.tpot_s):
        return _Rows((), left_out=f"{setting}: no request was served while all clients were busy; left out")
    drafts = window.grown("drafts") if window.has("drafts") else 0.0
    if drafts and plan.proposer is None:
        raise InputError("--proposer", "not given", "the server drafts", "name what it drafts with")
    if drafts and not window.has("draft_tokens"):
        raise InputError(
            "--url", "a server that drafts", "it does not count how many drafts", "give its runs with --tpot"
        )
    accepted = window.grown("accepted_tokens") / drafts if drafts else 0.0
    k = round(window.grown("draft_tokens") / drafts) if drafts else 0
    typical_s = float(np.median(lap.tpot_s))
    row = TpotRow(
        concurrency=setting.batch,
        tpot_ms=typical_s * 1e3,
        k=k,
        proposer=plan.proposer,
        acceptance_length=min(1.0 + accepted, k + 1.0),
        prompt_tokens=setting.prompt_tokens,
        output_tokens=setting.output_tokens,
    )
    return _Rows((row.observation(source, str(setting)),), typical_s)


def _is_server_log(path: Path) -> bool:
    """Whether it is lines of text rather than of JSON; it can be read, as its size was told."""
    with path.open("rb") as file:
        return file.read(256).lstrip()[:1] not in (b"{", b"")


def default_held_out(batches: Sequence[int]) -> frozenset[int]:
    """Every third batch beginning with the third, but the largest: tests that lie between fitted ones."""
    inside = sorted(set(batches))[2:-1:3]
    return frozenset(inside)
