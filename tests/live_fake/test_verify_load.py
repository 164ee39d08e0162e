"""What load generators are told to send, and what is read of their results."""

from __future__ import annotations

import json
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kplan.config.shipped import shipped_traces
from kplan.errors import InputError
from kplan.live.bench_serve import command_of, read_result, run_load
from kplan.live.judge_steps import read_step_log
from kplan.live.prompts import Prompt
from kplan.live.steplog import log_size
from kplan.live.workload import Demand, Files, demand, planned
from kplan.live.workload_flags import Target, sglang_flags, takes, vllm_flags
from kplan.provenance import file_digest
from tests.live_fake.verified import NOWHERE, plan, ready

VLLM = Target("http://127.0.0.1:8000", "vllm", "served", "/models/target")
SGLANG = replace(VLLM, engine="sglang", api_key="secret")
RATE = {"qps": 2.5, "arrivals": "poisson", "burstiness": 1.0, "replay": None}
TEXTS = (Prompt(0, text="one"), Prompt(1, text="two"), Prompt(2, text="three"))

VLLM_RESULT: dict[str, Any] = {
    "duration": 1.25,
    "completed": 2,
    "failed": 0,
    "input_lens": [8, 9],
    "output_lens": [5, 3],
    "ttfts": [0.1, 0.2],
    "itls": [[0.1, 0.3], [0.05]],
    "start_times": [104.5, 104.0],
    "errors": ["", ""],
}
SGLANG_RESULT: dict[str, Any] = {
    "backend": "sglang-oai-chat",
    "dataset_name": "openai",
    "request_rate": 2.5,
    "max_concurrency": None,
    "duration": 2.0,
    "completed": 2,
    "total_input_tokens": 17,
    "total_output_tokens": 8,
    "output_throughput": 4.0,
    "accept_length": 2.0,
    "input_lens": [8, 9],
    "output_lens": [5, 3],
    "ttfts": [0.1, 0.2],
    "itls": [[0.1, 0.3], [0.05]],
    "generated_texts": ["a", "b"],
    "errors": ["", ""],
}


def _sent(**changes: Any) -> Demand:
    plain = Demand(
        prompt_len=np.array([16, 33, 5]),
        output_len=np.array([7, 8, 9]),
        arrival_s=np.array([0.0, 0.5, 2.0]),
        concurrency=None,
        rows=None,
        prompts=None,
    )
    return replace(plain, **changes)


def _value(flags: list[str], name: str) -> str:
    return flags[flags.index(name) + 1]


def _rows(flags: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(_value(flags, "--dataset-path")).read_text().splitlines()]


def test_vllm_is_sent_random_tokens_at_the_plan_s_own_moments(tmp_path: Path) -> None:
    flags = vllm_flags(VLLM, _sent(), RATE, tmp_path / "result.json")
    rows = _rows(flags)
    assert _value(flags, "--dataset-name") == "timed_trace"
    assert [(one["timestamp"], one["input_length"], one["output_length"]) for one in rows] == [
        (0.0, 16, 7),
        (0.5, 33, 8),
        (2.0, 5, 9),
    ]
    # pieces of 16 tokens: 1, 3 and 1 of them, none shared
    assert [len(one["hash_ids"]) for one in rows] == [1, 3, 1]
    assert len({piece for one in rows for piece in one["hash_ids"]}) == 5
    assert "--request-rate" not in flags
    assert "--max-concurrency" not in flags


def test_vllm_s_clients_are_as_many_as_planned(tmp_path: Path) -> None:
    sent = _sent(arrival_s=None, concurrency=3)
    flags = vllm_flags(VLLM, sent, RATE | {"qps": None}, tmp_path / "result.json")
    assert _value(flags, "--max-concurrency") == "3"
    assert {one["timestamp"] for one in _rows(flags)} == {0.0}


def test_vllm_is_sent_texts_at_the_plan_s_rate(tmp_path: Path) -> None:
    flags = vllm_flags(VLLM, _sent(prompts=TEXTS), RATE | {"burstiness": 0.5}, tmp_path / "r.json")
    assert _rows(flags)[1] == {"prompt": "two", "output_tokens": 8}
    assert (_value(flags, "--request-rate"), _value(flags, "--burstiness")) == ("2.5", "0.5")
    assert {"--ignore-eos", "--skip-chat-template", "--disable-shuffle"} <= set(flags)
    even = vllm_flags(VLLM, _sent(prompts=TEXTS), RATE | {"arrivals": "constant"}, tmp_path / "r.json")
    assert _value(even, "--burstiness") == "inf"


def test_texts_are_not_sent_along_a_ramp(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="steady rate"):
        vllm_flags(VLLM, _sent(prompts=TEXTS), RATE | {"arrivals": "ramp"}, tmp_path / "r.json")


def test_sglang_is_sent_chats(tmp_path: Path) -> None:
    flags = sglang_flags(SGLANG, _sent(prompts=TEXTS), RATE, tmp_path / "r.json")
    assert _rows(flags)[2] == {"messages": [{"role": "user", "content": "three"}], "max_tokens": 9}
    assert _value(flags, "--request-rate") == "2.5"
    assert not any("secret" in flag for flag in flags)
    with pytest.raises(InputError, match="Poisson"):
        sglang_flags(SGLANG, _sent(prompts=TEXTS), RATE | {"burstiness": 0.5}, tmp_path / "r.json")


def test_what_each_generator_can_send() -> None:
    ids = (Prompt(0, token_ids=(1, 2)),)
    assert takes("vllm", _sent())
    assert not takes("sglang", _sent())
    assert takes("sglang", _sent(prompts=TEXTS))
    assert not takes("vllm", _sent(prompts=ids))


@pytest.mark.parametrize(("engine", "record"), [("vllm", VLLM_RESULT), ("sglang", SGLANG_RESULT)])
def test_results_are_read(engine: str, record: dict[str, Any]) -> None:
    found = read_result(record, engine)
    assert found.decode_s == pytest.approx([0.4, 0.05])
    assert found.chunks.tolist() == [2, 1]
    assert found.output_len.tolist() == [5, 3]
    assert found.duration_s == record["duration"]
    if engine == "vllm":
        assert found.start_s == pytest.approx([0.5, 0.0])
    else:
        assert found.start_s is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"completed": 1}, "1 of 2 requests failed"),
        ({"errors": ["", "Traceback\nConnectionResetError: reset"]}, "ConnectionResetError: reset"),
        ({"ttfts": []}, "requests failed"),
        ({"itls": None}, "another kind"),
        ({"start_times": ["soon", 1]}, "another kind"),
    ],
)
def test_failures_and_foreign_results_are_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as told:
        read_result(VLLM_RESULT | change, "vllm")
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def _interpreter(folder: Path, body: str) -> Path:
    """A stand-in for an engine's interpreter: it says that it has vLLM, and runs ``body`` for ``-m``."""
    script = folder / "python"
    asked = "if 'which_engines' in sys.argv[1]:\n    sys.exit(print('{\"vllm\": \"0.32.0\"}'))"
    script.write_text(f"#!{sys.executable}\nimport sys\n{asked}\n{body}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


WRITES = f"""
import json, pathlib
flags = sys.argv
at = pathlib.Path(flags[flags.index("--result-dir") + 1]) / flags[flags.index("--result-filename") + 1]
at.write_text(json.dumps({VLLM_RESULT!r}))
"""


def test_the_generator_is_run_in_the_engine_s_environment(tmp_path: Path) -> None:
    command = command_of("vllm", _interpreter(tmp_path, WRITES))
    assert command is not None
    assert command[1:] == ["-m", "vllm.entrypoints.cli.main", "bench", "serve"]
    assert run_load(command, VLLM, _sent(), RATE, 30.0).source == "vllm bench serve"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('OSError: no such tokenizer'); sys.exit(3)", "OSError: no such tokenizer"),
        ("print('all done')", "wrote no result"),
    ],
)
def test_a_generator_that_fails_is_one_line(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(InputError) as told:
        run_load([str(_interpreter(tmp_path, body))], VLLM, _sent(), RATE, 30.0)
    assert said in str(told.value)


def test_a_generator_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    body = f"import subprocess, time; subprocess.Popen([{sys.executable!r}, '-c', {child!r}]); time.sleep(60)"
    with pytest.raises(InputError, match="--limit-s"):
        run_load([str(_interpreter(tmp_path, body))], VLLM, _sent(), RATE, 1.0)
    time.sleep(3)
    assert not mark.exists()


def test_the_generator_is_given_this_server_s_key_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its environment: a command line can be read by every user of the machine."""
    monkeypatch.setenv("OPENAI_API_KEY", "of another service")
    monkeypatch.setenv("API_KEY", "of a third")
    body = (
        "import os, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text("
        "repr((os.environ.get('OPENAI_API_KEY'), os.environ.get('API_KEY'), 'secret' in str(sys.argv))))"
    )
    python = _interpreter(tmp_path, body)
    for target, seen in (
        (VLLM, (None, None, False)),
        (replace(VLLM, api_key="secret"), ("secret", None, False)),
    ):
        with pytest.raises(InputError, match="wrote no result"):
            run_load([str(python)], target, _sent(), RATE, 30.0)
        assert (tmp_path / "seen").read_text() == repr(seen)


def test_an_interpreter_must_have_the_engine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be run"):
        command_of("vllm", tmp_path / "python")
    with pytest.raises(InputError, match="it has no sglang"):
        command_of("sglang", Path(sys.executable))


def test_a_demand_is_the_plan_s_own_load() -> None:
    plan = ready(concurrency=None, qps=4.0, prompt_tokens=None, output_tokens=None)
    sent = demand(plan, 300, None)
    assert sent.arrival_s is not None
    assert 300 / sent.arrival_s[-1] == pytest.approx(4.0, rel=0.2)
    assert len(np.unique(sent.prompt_len)) > 50
    replicas = plan.plan.model_copy(update={"answer": plan.plan.answer.model_copy(update={"replicas": 4})})
    share = planned(replicas, NOWHERE)
    assert share.setup.scenario.qps == 1.0
    assert "one replica's share" in share.notes[0]


@pytest.mark.parametrize("files", [NOWHERE, replace(NOWHERE, traces=Path("example"))])
def test_the_trace_that_ships_needs_no_path(files: Files) -> None:
    shipped = shipped_traces()["example"]
    asked = {"traces": shipped.name, "traces_hash": file_digest(shipped), "proposer": "ngram"}
    found = planned(plan(prompt_tokens=None, output_tokens=None, **asked), files).setup.recorded
    assert found is not None
    assert len(found.request_id) == 260


def test_prompts_say_how_long_their_answers_are() -> None:
    sent = demand(ready(), 2, (Prompt(0, text="a", max_tokens=11), Prompt(1, text="b")))
    assert sent.output_len.tolist() == [11, 150]
    with pytest.raises(InputError, match="the file has 1 prompts"):
        demand(ready(), 2, (Prompt(0, text="a"),))


def test_only_the_lines_that_a_step_log_grew_by_are_read(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text('{"gap_ms": 99.0}\n')
    at = log_size(log)
    with log.open("a") as file:
        file.write('{"log": {}}\n{"gap_ms": 7.5}\n{"gap_ms": null, "ms": 3}\n')
        file.write('{"step_s": 0.01, "decode_requests": 2}\n{"step_s": 9, "decode_requests": 0}\n{"gap_')
    assert read_step_log(log, at) == pytest.approx([0.0075, 0.01])
    with pytest.raises(InputError, match="did not grow"):
        read_step_log(log, log_size(log))
    with pytest.raises(InputError, match="--steplog"):
        log_size(tmp_path / "none")
