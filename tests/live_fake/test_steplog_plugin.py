"""The step log's plugin, run as vLLM runs it on made-up statistics: what it writes; that it never raises."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kplan.latency.fit_steps import read_steps

CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(model="m"),
    cache_config=SimpleNamespace(num_gpu_blocks=100, block_size=16),
    speculative_config=SimpleNamespace(method="draft_model"),
)


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The plugin's module, with a stand-in for the class that it extends."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.v1", "vllm.v1.metrics"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, loggers.__name__, loggers)
    source = files("kplan.live") / "steplog_plugin.py"
    spec = importlib.util.spec_from_file_location("plugin_under_test", str(source))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scheduler(decoding: int, tokens: int, prompts: int = 0, prompt_tokens: int = 0, running: int = 9) -> Any:
    """What vLLM tells of a step's schedule; it waited 5 ms for its workers."""
    details = SimpleNamespace(
        iteration_index=7,
        num_ctx_requests=prompts,
        num_ctx_tokens=prompt_tokens,
        num_generation_requests=decoding,
        num_generation_tokens=tokens,
        elapsed_ms=5.0,
        is_dummy=False,
    )
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=0,
        kv_cache_usage=0.5,
        iteration_details=details,
        spec_decoding_stats=None,
    )


def iteration(
    new: int, gaps: tuple[float, ...] = (), prompt: int = 0, done: tuple[int, int] | None = None
) -> Any:
    """What vLLM tells of a step's outputs; ``done``: prompt and output length of one that ended."""
    ended = (
        [] if done is None else [SimpleNamespace(num_prompt_tokens=done[0], num_generation_tokens=done[1])]
    )
    return SimpleNamespace(
        inter_token_latencies_iter=list(gaps),
        num_generation_tokens=new,
        num_prompt_tokens=prompt,
        finished_requests=ended,
    )


def written(path: Path) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the plugin is told to write."""
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("KPLAN_STEPLOG", str(path))
    return path


def test_two_requests_are_logged_as_the_steps_that_they_took(plugin: ModuleType, log: Path) -> None:
    """Prompts of 10 and 20 tokens, a draft verified each, the second request ends after its fourth token."""
    logger = plugin.StepLog(CONFIG)
    logger.log_engine_initialized()
    logger.record(scheduler(0, 0, 2, 30), iteration(2, prompt=30))
    logger.record(scheduler(2, 4), iteration(4, gaps=(0.008, 0.008)))
    logger.record(scheduler(2, 4), iteration(3, gaps=(0.009, 0.009), done=(20, 4)))
    logger.record(scheduler(1, 2), iteration(1, gaps=(0.007,)))
    about, *steps = written(log)
    assert about == {
        "log": {
            "schema_version": 1,
            "model": "m",
            "engine_index": 0,
            "proposer": "draft-model",
            "kv_capacity_tokens": 1600,
        }
    }
    assert [step["held"] for step in steps] == [0, 32, 36, 15]  # 30 + 2; + 4; + 3 - 24
    assert [step["gap_ms"] for step in steps] == [None, 8.0, 9.0, 7.0]
    rows = read_steps(log)
    assert [row.seconds for row in rows] == [
        0.008,
        0.009,
        0.007,
    ]  # never the 5 ms, which are a part of a step
    assert [(row.batch, row.k, row.context) for row in rows] == [(2, 1, 16), (2, 1, 18), (1, 1, 15)]
    assert {row.proposer for row in rows} == {"draft-model"}


def test_a_server_without_speculation_says_so(plugin: ModuleType, log: Path) -> None:
    """So that a proposer which the reader is told of stays with the servers that have one."""
    plain = SimpleNamespace(**vars(CONFIG) | {"speculative_config": None})
    logger = plugin.StepLog(plain)
    logger.log_engine_initialized()
    logger.record(scheduler(2, 2), iteration(2, gaps=(0.008, 0.008)))
    (row,) = read_steps(log, proposer="draft-model")
    assert row.proposer is None


def test_an_idle_engine_holds_nothing(plugin: ModuleType, log: Path) -> None:
    """Requests that were given up leave no trace in vLLM's statistics but that nothing runs."""
    logger = plugin.StepLog(CONFIG)
    logger.record(scheduler(0, 0, 1, 30), iteration(1, prompt=30))
    logger.record(scheduler(1, 1, running=0), iteration(1, gaps=(0.01,)))
    logger.record(scheduler(0, 0, 1, 12), iteration(1, prompt=12))
    logger.record(scheduler(1, 1), iteration(1, gaps=(0.01,)))
    assert [step["held"] for step in written(log)] == [0, 31, 0, 13]


def test_without_the_variable_nothing_is_written(
    plugin: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KPLAN_STEPLOG", raising=False)
    monkeypatch.chdir(tmp_path)
    logger = plugin.StepLog(CONFIG)
    logger.log_engine_initialized()
    logger.record(scheduler(1, 1), iteration(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/nowhere/steps.jsonl", "/proc/version"])
def test_a_log_that_cannot_be_written_is_one_warning(
    path: str, plugin: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KPLAN_STEPLOG", path)
    with caplog.at_level(logging.WARNING):
        logger = plugin.StepLog(CONFIG)
        for _ in range(3):
            logger.record(scheduler(1, 1), iteration(1))
    assert len(caplog.records) == 1
    assert "step log ends" in caplog.text


def test_statistics_of_another_release_end_the_log_and_not_the_engine(
    plugin: ModuleType, log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = plugin.StepLog(CONFIG)
    with caplog.at_level(logging.WARNING):
        logger.record(SimpleNamespace(renamed=1), iteration(1))
        logger.record(scheduler(1, 1), iteration(1))
    assert len(caplog.records) == 1
    assert log.read_text() == ""


def test_a_full_log_stops_with_a_note(
    plugin: ModuleType, log: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KPLAN_STEPLOG_MIB", "0.001")
    logger = plugin.StepLog(CONFIG)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            logger.record(scheduler(1, 1), iteration(1, gaps=(0.01,)))
    *steps, last = written(log)
    assert last == {"stopped": "size limit"}
    assert 0 < len(steps) < 50
    assert log.stat().st_size < 0.001 * 2**20 + 50
    assert len(caplog.records) == 1
    assert len(read_steps(log)) == len(steps)
