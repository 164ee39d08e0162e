"""Servers, files and settings that mean no good: one line each, in bounded time, and no key in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.live.judge_steps import read_step_log
from kplan.live.metrics import read_metrics
from kplan.live.server import Server, base_url
from tests.live_fake.fake import Engine, FakeServer
from tests.live_fake.hostile import MODELS, Answer, Hostile, chunks, event, vllm

KEY = "sk-never-to-be-shown"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplan.live.server.SETTLE_S", 0.01)
    monkeypatch.setattr("kplan.live.generate.PAUSE_S", 0.01)
    monkeypatch.setenv("KPLAN_TEST_KEY", KEY)


def record(capsys: pytest.CaptureFixture[str], folder: Path, url: str, *flags: str) -> tuple[int, str]:
    """Run kplan record; its exit code, and its one line."""
    prompts = folder / "prompts.txt"
    prompts.write_text("one\ntwo\n")
    named = () if "--prompts" in flags else ("--prompts", str(prompts))
    argv = ["record", "--url", url, "--out", str(folder / "a.jsonl"), "--proposer", "eagle3", *named, *flags]
    code = run([*argv, "--json"])
    told = capsys.readouterr()
    assert told.err.count("\n") <= 1, told.err
    assert KEY not in told.out + told.err
    assert not any(KEY in path.read_text() for path in folder.iterdir() if path.is_file())
    return code, told.err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:8000", "must begin with http"),
        ("file:///etc/hosts", "must begin with http"),
        ("http://127.0.0.1:0", "a port is 1..65535"),
        ("http://127.0.0.1:99999", "a port is 1..65535"),
        ("http://" + "a" * 70 + ".example", "is no URL"),
        ("http://.example", "is no URL"),
        ("http://xn--/", "is no URL"),
        ("http://ex\nample", "is no URL"),
        ("http://" + "a" * 70_000, "is no URL"),
        (f"http://me:{KEY}@127.0.0.1:1", "would be shown"),
        (f"http://me:{KEY}@[::1", "is no URL"),
    ],
)
def test_what_is_no_url_of_a_server(url: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as told:
        base_url(url)
    assert KEY not in str(told.value)
    assert len(str(told.value)) < 1000


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (b"<html>no</html>", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"data": []}', "lists no model"),
        (b'{"data": [{"owned_by": "vllm"}]}', "names no model"),
        (b'{"data": [{"owned_by": "vllm", "id": [1]}]}', "names no model"),
        (b'{"data": [{"owned_by": "' + b"x" * 100_000 + b'"}]}', "a server of xxx"),
        ((401, KEY.encode()), "401"),
        (KEY.encode(), "not JSON"),
        (chunks(b"x" * 2**20, times=40), "more than 33,554,432 bytes"),
        (chunks(b"no gzip", Content_Encoding="gzip"), "answers as gzip, which was not asked for"),
    ],
)
def test_answers_of_another_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], models: Answer, says: str
) -> None:
    with Hostile({"/v1/models": models}) as server:
        code, err = record(capsys, tmp_path, server.url, "--api-key-env", "KPLAN_TEST_KEY")
    assert (code, says in err) == (2, True), err
    assert len(err) < 1000


def test_an_answer_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplan.live.server.ANSWER_S", 0.3)
    dripping = chunks(b"x", times=100, pause_s=0.1)
    with (
        Hostile({"/v1/models": dripping}) as hostile,
        Server(hostile.url) as server,
        pytest.raises(InputError, match="did not answer in time"),
    ):
        server.info()


def _told(**changes: Any) -> Answer:
    """A whole answer of three tokens, whose words on its acceptance are changed."""
    told = {"num_spec_steps": 1, "num_draft_tokens": 4, "acceptance_histogram": [0, 1, 0, 0, 0]} | changes
    return chunks(
        event(choices=[{"token_ids": [5], "finish_reason": None}]),
        event(choices=[{"token_ids": [6, 7], "finish_reason": "length"}]),
        event(
            choices=[],
            usage={"prompt_tokens": 3, "completion_tokens": 3},
            metrics={"speculative_decoding": told},
        ),
    )


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (chunks(b"data: \xff\xfe\n\n"), "not JSON"),
        (chunks(b"data: " + b"[" * 100_000 + b"\n\n"), "not JSON"),
        (chunks(b"data: [1]\n\n"), "no object"),
        (chunks(b"x" * 2**22, times=100), "a line of more than 16,777,216 bytes"),
        (chunks(b"no gzip", Content_Encoding="gzip"), "as gzip, which was not asked for"),
        (chunks(event(choices=[{"token_ids": [-5]}])), "no list of token ids"),
        (chunks(event(choices=[{"token_ids": [10**30]}])), "no list of token ids"),
        (chunks(event(error="x" * 100_000)), "failed (xxx"),
        ((400, b"[" * 3000), "refuses a first request"),
        (chunks(b"x", times=5000, status=400), "refuses a first request"),
        ((400, b'{"error": "bad key ' + KEY.encode() + b'"}'), "bad key (the API key)"),
        ((403, KEY.encode()), "(the API key); give --api-key-env"),
        (_told(num_draft_tokens=float("nan")), "must be a count"),
        (_told(acceptance_histogram="many"), "must be a list of counts"),
        (_told(acceptance_histogram=[0] * 100_000), "must be a list of counts"),
        (_told(per_step_drafted=[10**9]), "up to 254"),
        (_told(per_step_accepted=["1"]), "up to 254"),
    ],
)
def test_streams_of_garbage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: Answer, says: str
) -> None:
    with Hostile(vllm(answer)) as server:
        code, err = record(capsys, tmp_path, server.url, "--api-key-env", "KPLAN_TEST_KEY")
    assert (code, says in err) == (2, True), err
    assert not (tmp_path / "a.jsonl").exists()


def test_text_with_a_line_separator_is_no_end_of_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM sends U+2028 as it is; JSON allows that."""
    body = '{"choices": [{"text": "a\u2028b\u0085c", "token_ids": [5], "finish_reason": "length"}]}'
    answer = chunks(
        f"data: {body}\r\n\r\n".encode(),
        event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 1}),
    )
    with Hostile(vllm(answer)) as server:
        record(capsys, tmp_path, server.url)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["output_token_ids"] for row in rows] == [[5], [5]]


def test_a_first_answer_that_only_drips_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplan.live.generate.GRACE_S", 0.2)
    with Hostile(vllm(chunks(b": wait\n", times=100, pause_s=0.1))) as server:
        code, err = record(capsys, tmp_path, server.url, "--limit-s", "1")
    assert (code, "a first request was not answered" in err) == (2, True), err


def test_a_position_that_is_no_number_is_named() -> None:
    counted = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="zero"} 1.0\n'
    with pytest.raises(InputError, match="'zero'"):
        read_metrics(counted, "vllm").by_position("accepted_per_position")


def test_counters_that_are_gone_do_not_lose_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answers stay, and the run is closed as one that the counters do not confirm."""
    lacking = frozenset({"vllm:spec_decode_num_accepted_tokens_total"})
    with FakeServer(Engine()) as fake:
        fake.faults.missing = lacking
        code, _ = record(capsys, tmp_path, fake.url)
    (run_of_it,) = json.loads((tmp_path / "a.jsonl.meta.json").read_text())["runs"]
    assert (code, run_of_it["closed"], run_of_it["sound"]) == (1, True, False)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


def test_a_server_with_a_key_is_calibrated_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeServer(Engine(api_key=KEY, k=0)) as fake:
        argv = ["calibrate", "--url", fake.url, "--out", str(tmp_path / "own.yaml"), "--batches", "1"]
        argv += ["--hold-out", "none", "--prompt-tokens", "8", "--output-tokens", "8", "--limit-s", "0.001"]
        assert run(argv) == 2
        assert "401 Unauthorized; --api-key-env names" in capsys.readouterr().err
        assert run([*argv, "--api-key-env", "KPLAN_TEST_KEY"]) == 2
    assert "is used up by warming up" in capsys.readouterr().err


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}é", f" {KEY}"])
def test_a_key_that_no_header_can_hold_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("KPLAN_TEST_KEY", key)
    code, err = record(capsys, tmp_path, "http://127.0.0.1:9", "--api-key-env", "KPLAN_TEST_KEY")
    assert (code, "export the key alone" in err) == (2, True), err


@pytest.mark.parametrize(
    ("variable", "value"), [("ALL_PROXY", "socks9://x:1"), ("SSL_CERT_FILE", "/nonexistent")]
)
def test_proxies_and_certificates_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=variable):
        Server("http://server.invalid:8000")


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--limit-s", "nan", "--limit-s"),
        ("--limit-s", "inf", "at most 2592000 seconds"),
        ("--silence-s", "inf", "at most 2592000 seconds"),
        ("--temperature", "inf", "0..100"),
        ("--max-tokens", "1000000000", "1..1000000"),
        ("--concurrency", "1000000000", "1..4096"),
    ],
)
def test_settings_without_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str, says: str
) -> None:
    code, err = record(capsys, tmp_path, "http://127.0.0.1:9", flag, value)
    assert (code, says in err) == (2, True), err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"prompt": "\\ud800"}', "cannot be sent"),
        (b'{"messages": [{"role": "user", "content": NaN}]}', "cannot be sent"),
        (b'[{"conversations": [{"from": "human", "value": "\\ud800"}]}]', "cannot be sent"),
        (b'\xef\xbb\xbf{"text": "hi"}', "one of messages"),
    ],
)
def test_prompts_that_cannot_be_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    """The last has the mark of a Windows editor before its JSON, and is read as JSON all the same."""
    file = tmp_path / "mine.jsonl"
    file.write_bytes(content)
    code, err = record(capsys, tmp_path, "http://127.0.0.1:9", "--prompts", str(file))
    assert (code, says in err) == (2, True), err


def test_a_pipe_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    code, err = record(capsys, tmp_path, "http://127.0.0.1:9", "--prompts", str(pipe))
    assert (code, "is no file" in err) == (2, True), err
    for argv in (["verify", str(pipe), "--url", "http://127.0.0.1:9"], ["report", str(pipe)]):
        assert run(argv) == 2
        assert "is no file" in capsys.readouterr().err
    with pytest.raises(InputError, match="is no file"):
        read_step_log(pipe, 0)


def test_prompts_are_not_written_over_by_the_settings_beside_the_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "a.jsonl.meta.json"
    prompts.write_text('{"prompt": "hi"}\n')
    code, err = record(capsys, tmp_path, "http://127.0.0.1:9", "--prompts", str(prompts), "--restart")
    assert (code, "is read by the same command" in err) == (2, True), err
    assert prompts.read_text() == '{"prompt": "hi"}\n'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"chunks"', '"chonks"', "begin anew"),
        ('"usage"', '"usige"', "begin anew"),
        ('"acceptance_histogram":[', '"acceptance_histogram":["a",', "begin anew"),
        ('"run":0', '"run":9', "does not list every run"),
    ],
)
def test_rows_that_were_changed_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, says: str
) -> None:
    with FakeServer(Engine()) as fake:
        record(capsys, tmp_path, fake.url, "--max-tokens", "8")
        rows = tmp_path / "a.jsonl"
        rows.write_text(rows.read_text().replace(old, new))
        code, err = record(capsys, tmp_path, fake.url, "--max-tokens", "8")
    assert (code, says in err) == (2, True), err


@pytest.mark.parametrize("line", ["NaN", "-5", "true", "Infinity", "9" * 400, "[" * 5000])
def test_a_step_log_of_no_times(tmp_path: Path, line: str) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text(f'{{"gap_ms": {line}}}\n')
    with pytest.raises(InputError, match="did not grow by a step"):
        read_step_log(log, 0)
    log.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        read_step_log(log, 0)


def test_models_of_the_usual_kind_are_read() -> None:
    """What the other tests change is good as it stands."""
    with Hostile({"/v1/models": MODELS}) as hostile, Server(hostile.url) as server:
        info = server.info()
    assert (info.engine, info.model, info.max_model_len, info.version) == ("vllm", "m", 4096, "")
