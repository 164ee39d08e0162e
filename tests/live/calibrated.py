"""The servers of the calibration tests, one after another: timed, calibrated on, recorded.

Four servers of one model pair: without speculation, with a table that scatters K over the batches, with a
table that falls with the batch, and with K = 4. The first two are calibrated on at some batch sizes; the last
is recorded too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from kplan.cli.app import run
from kplan.latency.fit_steps import read_steps
from kplan.live import Server as Client
from kplan.live.sweep import Driver, Setting
from kplan.telling import silent
from tests.live.install import Engine
from tests.live.server import Server, serve
from tests.live.walk import Pair

K = 4
LAPS, MEASURED_LAPS = 3, 5
"""Times that a load is run, as far as LIMIT_S allows: a shared machine is slow for seconds at a time."""
LIMIT_S = 150.0
"""Of all laps of a server: two of each load on a machine that takes 10 ms for what usually takes 3."""
TABLES = {
    "scattered": ((1, 2, 4), (3, 3, 1), (4, 11, 0), (12, 15, 3), (16, 23, 4), (24, 32, 1)),
    "table": ((1, 4, 4), (5, 16, 2), (17, 32, 0)),
}
CALIBRATED = {"off": (2, 4, 12, 24), "scattered": (2, 3, 4, 12, 16, 24)}
HELD_OUT, PREDICTED = 12, (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS, RECORDED_TOKENS = 64, 96, 128
POLICIES = {"off": "off", "table": "table:1-4=4,5-16=2,17-=0", "fixed": f"fixed:{K}"}


@dataclass(frozen=True)
class Load:
    """A closed loop as it was measured: median seconds of its steps, and seconds per output token."""

    step_s: float
    tpot_s: float


@dataclass(frozen=True)
class Calibrated:
    """What the servers showed, and what was fitted on them.

    Attributes:
        told: (server -> what the command said of its fit).
        measured: (server, batch) -> load.
        calibration: of the last fit, on the rows of both servers.
        recording: what ``kplan record`` wrote of the server with K = 4.
    """

    told: dict[str, dict[str, Any]]
    measured: dict[tuple[str, int], Load]
    calibration: Path
    recording: Path


@contextmanager
def serving(engine: Engine, pair: Pair, log: Path, name: str) -> Iterator[Server]:
    config: dict[str, Any] = {
        "model": str(pair.folder / "target"),
        "max-num-seqs": 32,
        "enable-logging-iteration-details": True,
    }
    if name == "fixed":
        config["per-request-spec-decode-metrics"] = "detailed"
    if name != "off":
        drafts: dict[str, Any] = {
            "method": "draft_model",
            "model": str(pair.folder / "draft"),
            "num_speculative_tokens": K,
        }
        if name in TABLES:
            drafts["num_speculative_tokens_per_batch_size"] = [list(row) for row in TABLES[name]]
        config["speculative-config"] = drafts
    with started(engine, config, log) as server:
        yield server


@contextmanager
def started(engine: Engine, config: dict[str, Any], log: Path) -> Iterator[Server]:
    """A server of that config, steadily timed, which logs its steps."""
    file = log.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KPLAN_STEPLOG", str(log))
        with serve(engine, file, steady=True) as server:
            yield server


def served(pair: Pair) -> list[str]:
    """Flags that name the pair."""
    target, draft = str(pair.folder / "target"), str(pair.folder / "draft")
    return ["--hardware", "cpu", "--model", target, "--drafter", draft, "--proposer", "draft-model"]


def _calibrate(server: Server, pair: Pair, log: Path, batches: Sequence[int], *flags: str) -> dict[str, Any]:
    argv = ["calibrate", "--url", server.url, "--steplog", str(log), *served(pair), "--partial"]
    argv += ["--batches", ",".join(map(str, batches)), "--hold-out", str(HELD_OUT), "--limit-s", str(LIMIT_S)]
    argv += ["--prompt-tokens", "32,256", "--output-tokens", str(OUTPUT_TOKENS), "--repeats", str(LAPS)]
    code, told = kplan([*argv, *flags], log.with_name(f"{log.stem}-told.json"))
    assert code == 0
    return told


def _record(server: Server, pair: Pair, folder: Path) -> None:
    """``kplan record`` of prompts that end all over the pair's cycle."""
    prompts = folder / "prompts.jsonl"
    lines = [{"prompt_token_ids": [*pair.cycle[:63], token]} for token in pair.cycle[::64]]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = ["record", "--url", server.url, "--prompts", str(prompts), "--proposer", "draft-model"]
    argv += ["--max-tokens", str(RECORDED_TOKENS), "--ignore-eos", "--out", str(folder / "recorded.parquet")]
    code, told = kplan(argv, folder / "recorded.json")
    assert code == 0, told


def _measure(server: Server, log: Path) -> dict[int, Load]:
    """The loads that are predicted, as they are served, in several laps spread over the time."""
    step_s: dict[int, list[float]] = {batch: [] for batch in PREDICTED}
    tpot_s: dict[int, list[float]] = {batch: [] for batch in PREDICTED}
    with Client(server.url) as client:
        driver = Driver(client, client.info(), 4096, lambda: log.stat().st_size, LIMIT_S)
        driver.warm_up(Setting(8, PROMPT_TOKENS, OUTPUT_TOKENS))
        settings = [Setting(batch, PROMPT_TOKENS, OUTPUT_TOKENS) for batch in PREDICTED]
        for lap in driver.laps(settings * MEASURED_LAPS, silent):
            batch = lap.setting.batch
            rows = read_steps(log, begin=lap.begin, end=lap.end)
            steps = [row.seconds for row in rows if row.batch == batch and not row.mean("prefill_requests")]
            step_s[batch].extend([float(np.median(steps))] if steps else [])
            by_the_engine = lap.window.mean("tpot_s", "tpot_requests")  # the client is starved
            assert by_the_engine is not None
            tpot_s[batch].append(by_the_engine)
    for batch in PREDICTED:
        assert step_s[batch], f"no step of {batch} decodes alone was seen in {LIMIT_S:g} s"
    return {batch: Load(_typical(step_s[batch]), _typical(tpot_s[batch])) for batch in PREDICTED}


def measured_anew(engine: Engine, pair: Pair, name: str, folder: Path) -> dict[tuple[str, int], Load]:
    """(server, batch) -> load, of another start of that server."""
    log = folder / f"{name}.jsonl"
    with serving(engine, pair, log, name) as server:
        return {(name, batch): load for batch, load in _measure(server, log).items()}


def _typical(laps: list[float]) -> float:
    """The second fastest of five laps: more than half of them may have been disturbed, and one been lucky."""
    return sorted(laps)[len(laps) // 4]


def calibrate(engine: Engine, pair: Pair, folder: Path) -> Calibrated:
    """The four servers, one after another; what they write lands in ``folder``."""
    rows, told, measured = folder / "off-rows.jsonl", {}, {}
    more = {"off": ["--save-steps", str(rows)], "scattered": ["--steps", str(rows)]}
    for name in ("off", "scattered", "table", "fixed"):
        log = folder / f"{name}.jsonl"
        with serving(engine, pair, log, name) as server:
            if name in CALIBRATED:
                out = ["--out", str(folder / f"{name}-calibration.yaml")]
                told[name] = _calibrate(server, pair, log, CALIBRATED[name], *more[name], *out)
            if name in POLICIES:
                measured |= {(name, batch): load for batch, load in _measure(server, log).items()}
            if name == "fixed":
                _record(server, pair, folder)
    return Calibrated(told, measured, folder / "scattered-calibration.yaml", folder / "recorded.parquet")


def kplan(argv: list[str], out: Path) -> tuple[int, dict[str, Any]]:
    """The exit code of a command, and its ``--json``, which passes through the file ``out``."""
    with out.open("w") as sink, redirect_stdout(sink):
        code = run([*argv, "--json"])
    told: dict[str, Any] = json.loads(out.read_text())
    return code, told
