"""``kplan calibrate --url`` on real servers: what it fitted predicts loads and a table that were not fitted.

Four servers of one model pair. Two are calibrated on: one without speculation, and one whose table scatters K
over the batch sizes, as a table that falls with the batch would not tell what K costs from what the batch
does. Other batch sizes of the first, and all of a server with K = 4 and of one with a plain table, are
predicted. Times on two busy cores scatter, so medians are judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from kplan.acceptance import ProposerTrace, TraceSet, save_traces
from kplan.cli.app import run
from kplan.latency.fit_steps import read_steps
from kplan.live import Server as Client
from kplan.live.steplog import engine_site, install, is_installed, uninstall
from kplan.live.sweep import Driver, Setting
from kplan.provenance import Kind, Provenance
from tests.live.install import Engine
from tests.live.server import Server, serve
from tests.live.walk import Pair, walk

K = 4
LAPS = 3
"""Times that a load is run: a machine shared with others is slow for seconds at a time."""
TABLES = {
    "scattered": ((1, 2, 4), (3, 3, 1), (4, 11, 0), (12, 15, 3), (16, 23, 4), (24, 32, 1)),
    "table": ((1, 4, 4), (5, 16, 2), (17, 32, 0)),
}
CALIBRATED, HELD_OUT, PREDICTED = (2, 3, 4, 12, 16, 24), 12, (1, 8, 32)
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 128
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
    """

    told: dict[str, dict[str, Any]]
    measured: dict[tuple[str, int], Load]
    calibration: Path


@pytest.fixture(scope="module")
def logging_vllm(vllm: Engine) -> Iterator[Engine]:
    """The engine with the plugin, which it keeps when it had it."""
    site = engine_site(vllm.python)
    had = is_installed(site)
    install(site)
    yield vllm
    if not had:
        uninstall(site)


@contextmanager
def _serving(engine: Engine, pair: Pair, log: Path, name: str) -> Iterator[Server]:
    config: dict[str, Any] = {
        "model": str(pair.folder / "target"),
        "max-num-seqs": 32,
        "enable-logging-iteration-details": True,
    }
    if name != "off":
        drafts: dict[str, Any] = {
            "method": "draft_model",
            "model": str(pair.folder / "draft"),
            "num_speculative_tokens": K,
        }
        if name in TABLES:
            drafts["num_speculative_tokens_per_batch_size"] = [list(row) for row in TABLES[name]]
        config["speculative-config"] = drafts
    file = log.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KPLAN_STEPLOG", str(log))
        with serve(engine, file, steady=True) as server:
            yield server


def _served(pair: Pair) -> list[str]:
    """Flags that name the pair."""
    target, draft = str(pair.folder / "target"), str(pair.folder / "draft")
    return ["--hardware", "cpu", "--model", target, "--drafter", draft, "--proposer", "draft-model"]


def _calibrate(server: Server, pair: Pair, log: Path, *flags: str) -> dict[str, Any]:
    out = log.with_name(f"{log.stem}-told.json")
    argv = ["calibrate", "--url", server.url, "--steplog", str(log), *_served(pair), "--partial", "--json"]
    argv += ["--batches", ",".join(map(str, CALIBRATED)), "--hold-out", str(HELD_OUT), "--limit-s", "90"]
    argv += ["--repeats", str(LAPS)]
    argv += ["--prompt-tokens", "32,256", "--output-tokens", str(OUTPUT_TOKENS), *flags]
    with out.open("w") as sink, redirect_stdout(sink):
        assert run(argv) == 0
    told: dict[str, Any] = json.loads(out.read_text())
    return told


def _measure(server: Server, log: Path) -> dict[int, Load]:
    """The loads that are predicted, as they are served: the fastest of several laps spread over the time."""
    loads: dict[int, Load] = {}
    with Client(server.url) as client:
        driver = Driver(client, client.info(), 4096, lambda: log.stat().st_size, limit_s=90.0)
        driver.warm_up(Setting(8, PROMPT_TOKENS, OUTPUT_TOKENS))
        settings = [Setting(batch, PROMPT_TOKENS, OUTPUT_TOKENS) for batch in PREDICTED]
        for lap in driver.laps(settings * LAPS, lambda _: None):
            batch = lap.setting.batch
            rows = read_steps(log, begin=lap.begin, end=lap.end)
            steps = [row.seconds for row in rows if row.batch == batch and not row.mean("prefill_requests")]
            # by the engine's clock: the client is starved
            tpot_s = lap.window.mean("tpot_s", "tpot_requests")
            assert tpot_s is not None
            load = Load(float(np.median(steps)), tpot_s) if steps else None
            if load is not None and (batch not in loads or load.step_s < loads[batch].step_s):
                loads[batch] = load
    return loads


@pytest.fixture(scope="module")
def calibrated(logging_vllm: Engine, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    """The four servers, one after another."""
    folder = tmp_path_factory.mktemp("calibrate")
    rows, told, measured = folder / "off-rows.jsonl", {}, {}
    more = {"off": ["--save-steps", str(rows)], "scattered": ["--steps", str(rows)]}
    for name in ("off", "scattered", "table", "fixed"):
        log = folder / f"{name}.jsonl"
        with _serving(logging_vllm, pair, log, name) as server:
            if name in more:
                out = ["--out", str(folder / f"{name}-calibration.yaml")]
                told[name] = _calibrate(server, pair, log, *more[name], *out)
            if name in POLICIES:
                measured |= {(name, batch): load for batch, load in _measure(server, log).items()}
    return Calibrated(told, measured, folder / "scattered-calibration.yaml")


@pytest.fixture(scope="module")
def predicted(
    calibrated: Calibrated, pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int], Load]:
    """The same loads as ``kplan simulate`` sees them, on the pair's own acceptance."""
    folder = tmp_path_factory.mktemp("predicted")
    traces = _traces(pair, folder)
    loads = {}
    for name, batch in calibrated.measured:
        records, out = folder / f"{name}-{batch}", folder / f"{name}-{batch}.json"
        argv = [
            "simulate",
            *_served(pair),
            "--calibration",
            str(calibrated.calibration),
            "--traces",
            str(traces),
        ]
        argv += ["--policy", POLICIES[name], "--concurrency", str(batch), "--max-k", str(K), "--json"]
        argv += ["--max-num-seqs", "32", "--requests", "400", "--records", str(records)]
        with out.open("w") as sink, redirect_stdout(sink):
            assert run(argv) == 0
        told = json.loads(out.read_text())
        steps = pd.concat(pd.read_parquet(file) for file in records.rglob("steps.parquet"))
        loads[name, batch] = Load(_median_step_s(steps, batch), told["tpot_ms"]["mean"] / 1e3)
    return loads


def _median_step_s(steps: pd.DataFrame, batch: int) -> float:
    """Of the steps in which the whole batch decodes."""
    whole = steps[(steps["batch"] == batch) & (steps["decodes"] == batch)]
    return float((whole["end_s"] - whole["start_s"]).median())


def _traces(pair: Pair, folder: Path) -> Path:
    """What the pair accepts at every position of outputs that begin all over its cycle, at K = 4."""
    starts = pair.cycle[::32]
    acc = np.ones((len(starts), OUTPUT_TOKENS), np.uint8)
    for row, token in enumerate(starts):
        emitted = walk(pair, token, OUTPUT_TOKENS, 0).tokens
        for position in range(1, OUTPUT_TOKENS):
            last = emitted[position - 1]
            while acc[row, position] <= K and pair.draft[last] == pair.target[last]:
                acc[row, position] += 1
                last = pair.target[last]
    rows = len(starts)
    trace = ProposerTrace(
        output_len=np.full(rows, OUTPUT_TOKENS, np.int32),
        offsets=np.arange(rows + 1, dtype=np.int64) * OUTPUT_TOKENS,
        acc=np.minimum(acc, np.maximum(OUTPUT_TOKENS - np.arange(OUTPUT_TOKENS), 1)).astype(np.uint8).ravel(),
        drafted=None,
        aligned=np.ones(rows, bool),
        recorded_k=K,
    )
    made = Provenance(Kind.MEASURED, "maps of the model pair")
    names, prompts = np.array([f"r{n}" for n in range(rows)]), np.full(rows, PROMPT_TOKENS, np.int32)
    path = folder / "pair.parquet"
    save_traces(TraceSet(names, prompts, {"draft-model": trace}, made), path)
    return path


def test_the_step_log_names_every_k_of_the_table(calibrated: Calibrated) -> None:
    log = calibrated.calibration.with_name("table.jsonl")
    rows = [row for row in read_steps(log) if not row.mean("prefill_requests")]
    for batch, k in ((1, 4), (8, 2), (32, 0)):
        at = [row.k for row in rows if row.batch == batch]
        assert np.median(at) == k


def test_batches_held_out_of_a_fit_are_predicted(calibrated: Calibrated) -> None:
    for told in calibrated.told.values():
        held = {row["decode_requests"] for row in told["rows"] if row["held_out"]}
        assert HELD_OUT in held
        assert held <= set(range(8, HELD_OUT + 1))
        assert told["held_out_mape"] < 0.15


def test_median_steps_are_predicted(
    calibrated: Calibrated, predicted: dict[tuple[str, int], Load], capsys: pytest.CaptureFixture[str]
) -> None:
    errors = {at: predicted[at].step_s / load.step_s - 1 for at, load in calibrated.measured.items()}
    with capsys.disabled():
        print(f"\n{'server':<8}{'batch':>6}{'step ms':>9}{'told':>8}{'error':>7}{'TPOT ms':>9}{'told':>8}")
        for at, load in calibrated.measured.items():
            told = predicted[at]
            print(
                f"{at[0]:<8}{at[1]:>6}{load.step_s * 1e3:>9.2f}{told.step_s * 1e3:>8.2f}{errors[at]:>7.0%}"
                f"{load.tpot_s * 1e3:>9.2f}{told.tpot_s * 1e3:>8.2f}"
            )
    assert np.median(np.abs(list(errors.values()))) < 0.10
    assert max(map(abs, errors.values())) < 0.30


def test_servers_rank_as_predicted(calibrated: Calibrated, predicted: dict[tuple[str, int], Load]) -> None:
    for batch in PREDICTED:
        for one, other in combinations(POLICIES, 2):
            seen = calibrated.measured[one, batch].tpot_s / calibrated.measured[other, batch].tpot_s
            if not 1 / 1.1 < seen < 1.1:
                told = predicted[one, batch].tpot_s / predicted[other, batch].tpot_s
                assert (told > 1) == (seen > 1), (batch, one, other)
