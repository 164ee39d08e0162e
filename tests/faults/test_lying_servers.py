"""Every way in which a server may break or lie, against every command that asks one.

Each ends soon, with one line that names the fault and the exit code of its kind, and keeps what was answered.
"""

from __future__ import annotations

import asyncio
import json
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kplan.cli.app import run
from kplan.errors import InputError
from kplan.live.apart import run_apart
from kplan.live.dialect import Sampling, Vllm
from kplan.live.generate import Closed, drive
from kplan.live.metrics import Window, read_metrics
from kplan.live.prompts import Prompt
from kplan.live.server import Server, without_key
from kplan.live.told import StreamError, check_told
from tests.live_fake.fake import Engine, FakeServer
from tests.live_fake.hostile import Answer, Handler, Hostile, chunks, event, vllm

KEY = "sk-never-to-be-shown"
BOUND_S = 20.0
"""Far above what any of them takes, and far below what waiting for the server would."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("server.SETTLE_S", 0.01), ("server.PAUSE_S", 0.01), ("server.ANSWER_S", 0.4)):
        monkeypatch.setattr(f"kplan.live.{name}", value)
    monkeypatch.setattr("kplan.live.generate.PAUSE_S", 0.01)
    monkeypatch.setenv("KPLAN_TEST_KEY", KEY)


def record(folder: Path, url: str) -> list[str]:
    """The shortest recording."""
    (folder / "p.txt").write_text("one\ntwo\n")
    argv = ["record", "--url", url, "--prompts", str(folder / "p.txt"), "--out", str(folder / "a.jsonl")]
    return [*argv, "--proposer", "eagle3", "--silence-s", "0.5", "--max-tokens", "32"]


def calibrate(folder: Path, url: str) -> list[str]:
    """The shortest calibration."""
    argv = ["calibrate", "--url", url, "--out", str(folder / "own.yaml"), "--batches", "1", "--limit-s", "2"]
    return [*argv, "--hold-out", "none", "--prompt-tokens", "8", "--output-tokens", "32"]


COMMANDS = pytest.mark.parametrize("command", [record, calibrate])


def told(
    capsys: pytest.CaptureFixture[str], folder: Path, argv: list[str], *, key: bool = True
) -> tuple[int, str]:
    """Run it: its exit code and its one line; in bounded time, and the key nowhere."""
    began_s = time.monotonic()
    code = run([*argv, *(["--api-key-env", "KPLAN_TEST_KEY"] if key else [])])
    assert time.monotonic() - began_s < BOUND_S
    shown = capsys.readouterr()
    assert shown.err.count("\n") <= 1, shown.err
    assert "Traceback" not in shown.err
    assert len(shown.err) < 1200
    assert KEY[:8] not in shown.out + shown.err
    assert not any(KEY[:8] in path.read_text() for path in folder.iterdir() if path.is_file())
    return code, shown.err


@contextmanager
def raw(*pieces: bytes, pause_s: float = 0.0, times: int = 1) -> Iterator[str]:
    """A server that sends these bytes whatever it is asked, and then nothing more; its URL."""
    over = threading.Event()

    class Raw(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            for piece in pieces * times:
                try:
                    self.request.sendall(piece)
                except OSError:
                    return
                over.wait(pause_s)
            if not pieces or pause_s:
                over.wait(BOUND_S)

    class Quiet(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Quiet(("127.0.0.1", 0), Raw) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            over.set()
            server.shutdown()


HEAD = b"HTTP/1.1 200 OK\r\n"


@COMMANDS
@pytest.mark.parametrize(
    ("pieces", "pause_s", "times", "says"),
    [
        ([], 0.0, 1, "did not answer in time"),
        ([HEAD, b"X: " + b"a" * 8], 0.15, 60, "did not answer in time"),
        ([b"H"], 0.1, 1, "did not answer in time"),
        ([HEAD + b"X: " + b"a" * 2**20], 0.0, 100, "cannot be reached"),
        ([HEAD + b"Content-Length: 100\r\n\r\n{"], 0.0, 1, "cannot be reached"),
        ([HEAD + b"Content-Length: -5\r\n\r\n{}"], 0.0, 1, "cannot be reached"),
        ([HEAD + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"], 0.0, 1, "cannot be reached"),
        ([HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"], 0.0, 1, "cannot be reached"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], 0.0, 1, "cannot be reached"),
        ([HEAD + b"Connection: close\r\n\r\n<html>"], 0.0, 1, "not JSON"),
        ([b"HTTP/1.1 401 " + KEY.encode() + b"\r\nContent-Length: 0\r\n\r\n"], 0.0, 1, "(the API key)"),
    ],
    ids=["silent", "drips-headers", "one-byte", "endless-header", "short-body", "negative-length",
         "two-lengths", "bad-chunk", "ssh", "html", "says-the-key"],
)  # fmt: skip
def test_bytes_that_are_no_answer(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[Path, str], list[str]],
    pieces: list[bytes],
    pause_s: float,
    times: int,
    says: str,
) -> None:
    with raw(*pieces, pause_s=pause_s, times=times) as url:
        code, err = told(capsys, tmp_path, command(tmp_path, url))
    assert (code, says in err) == (2, True), err


def moved(status: int, to: str) -> Answer:
    """A redirect."""

    def answer(request: Handler) -> None:
        request.send_response(status)
        request.send_header("Location", to)
        request.send_header("Retry-After", "1000000000")
        request.send_header("Content-Length", "0")
        request.end_headers()

    return answer


@COMMANDS
@pytest.mark.parametrize("to", ["http://127.0.0.1:1/", "file:///etc/hosts", "/v1/models", "http://[", "\xff"])
def test_redirects_are_not_followed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: Callable[[Path, str], list[str]],
    to: str,
) -> None:
    with Hostile({"/v1/models": moved(301, to)}) as server:
        code, err = told(capsys, tmp_path, command(tmp_path, server.url))
    assert code == 2
    assert "redirects are not followed" in err or "cannot be reached" in err, err


@pytest.mark.parametrize("status", [401, 403, 404, 408, 413, 429, 500, 502, 503])
def test_statuses_whatever_they_ask_to_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    """Retry-After is a billion seconds, and nobody waits for it."""
    for routes in ({"/v1/models": moved(status, "")}, vllm(moved(status, ""))):
        with Hostile(routes) as server:
            code, err = told(capsys, tmp_path, record(tmp_path, server.url))
        assert (code, str(status) in err) == (2, True), err


def test_the_waits_between_tries_are_few_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is not waited for: 0.5 + 1 s for a question, 0.5 + 1 + 2 s for a request."""
    slept: list[float] = []

    async def asleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("kplan.live.server.PAUSE_S", 0.5)
    monkeypatch.setattr("kplan.live.generate.PAUSE_S", 0.5)
    monkeypatch.setattr("kplan.live.server.time.sleep", slept.append)
    with Hostile({"/v1/models": moved(503, "")}) as hostile, Server(hostile.url) as server:
        with pytest.raises(InputError, match="503"):
            server.info()
        assert slept == [0.5, 1.0]
        slept.clear()
        monkeypatch.setattr("kplan.live.generate.asyncio.sleep", asleep)
        with pytest.raises(InputError, match="at each of 4 tries"), Hostile(vllm(moved(429, ""))) as busy:
            drive(busy.url, Vllm("m"), [Prompt(0, text="a")], Sampling(4), Closed(1), lambda _: None)
    assert [seconds for seconds in slept if seconds] == [0.5, 1.0, 2.0]


USAGE = {"prompt_tokens": 3, "completion_tokens": 2}


def _stream(*choices: dict[str, Any], usage: dict[str, Any] = USAGE, **more: Any) -> Answer:
    """One chunk a choice, then the usage."""
    return chunks(*(event(choices=[one], **more) for one in choices), event(choices=[], usage=usage))


def tokens(*ids: int, end: str | None = None, **more: Any) -> dict[str, Any]:
    """A choice."""
    return {"index": 0, "token_ids": list(ids), "finish_reason": end, **more}


ENDLESS = tuple(tokens(*range(40)) for _ in range(60))
LIES: dict[str, tuple[Answer, str]] = {
    "aborted": (_stream(tokens(5), tokens(6, end="abort")), "the server gave it up"),
    "of nothing": (_stream(tokens(end="stop"), usage={"prompt_tokens": 3, "completion_tokens": 0}),
                   "ended without a token"),
    "never done": (_stream(*ENDLESS), "more than the 32 tokens"),
    "another model": (_stream(tokens(5), tokens(6, end="stop"), model="other"), "of the model other"),
    "another request": (
        chunks(event(id="a", choices=[tokens(5)]), event(id="b", choices=[tokens(6, end="stop")])),
        "a chunk of another request",
    ),
    "another prompt": (
        _stream(tokens(5, prompt_token_ids=[1, 2]), tokens(6, prompt_token_ids=[9, 9], end="stop")),
        "answers another request",
    ),
    "out of order": (_stream(tokens(6, end="stop"), tokens(5)), "out of order"),
    "two choices": (_stream(tokens(5), tokens(6) | {"index": 1}), "has a choice 1"),
    "other counts": (_stream(tokens(5), tokens(6, 7, end="stop")), "sent 3 token ids and counted 2"),
    "another count of the prompt": (
        _stream(tokens(5, prompt_token_ids=[1, 2]), tokens(6, end="stop")), "counts 3 prompt tokens of 2"),
    "one endless line": (chunks(b"data: " + b"x" * 2**20, times=40), "a line of more than"),
    "keeps awake": (chunks(b": wait\n\n", times=200, pause_s=0.05), "was silent for 0.5 s"),
    "packed twice": (chunks(b"x", Content_Encoding="gzip, gzip"), "which was not asked for"),
    "ends in a token": (chunks(b'data: {"choices": [{"token_ids": [5'), "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_answers_that_contradict_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lie: str
) -> None:
    answer, says = LIES[lie]
    with Hostile(vllm(answer)) as server:
        code, err = told(capsys, tmp_path, record(tmp_path, server.url))
    assert (code, says in err) == (2, True), err


SOUND: dict[str, Any] = {
    "num_spec_steps": 2,
    "num_draft_tokens": 8,
    "num_accepted_draft_tokens": 3,
    "num_spec_tokens": 4,
    "acceptance_histogram": [0, 1, 1, 0, 0],
    "per_step_accepted": [2, 1],
    "per_step_drafted": [4, 4],
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_spec_steps": 3}, "num_spec_steps tells 3"),
        ({"num_accepted_draft_tokens": 4}, "num_accepted_draft_tokens tells 4"),
        ({"num_draft_tokens": 9}, "9 drafts in 2 steps"),
        ({"num_draft_tokens": 2}, "3 accepted of 2 drafts"),
        ({"num_spec_tokens": 1}, "num_spec_tokens 1"),
        ({"per_step_drafted": [4]}, "per_step_accepted tells 2"),
        ({"per_step_drafted": [1, 7]}, "step 1 accepted 2 of 1"),
        ({"per_step_drafted": [4, 3]}, "num_draft_tokens tells 8"),
        ({"per_step_accepted": [3, 0]}, "tell of other steps"),
    ],
)
def test_words_on_acceptance_must_add_up(changes: dict[str, Any], says: str) -> None:
    check_told({"metrics": {"speculative_decoding": SOUND}})
    with pytest.raises(StreamError, match=says):
        check_told({"metrics": {"speculative_decoding": SOUND | changes}})


COUNTED = "vllm:generation_tokens_total"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{COUNTED} NaN\n", "a counter is a number from 0"),
        (f"{COUNTED} +Inf\n", "a counter is a number from 0"),
        (f"{COUNTED} -1\n", "a counter is a number from 0"),
        (f"{COUNTED} 1\n{COUNTED} 2\n", "stands there twice"),
        ("sglang:generation_tokens_total 1\n", "begin with vllm:"),
        ("<html>no</html>", "begin with vllm:"),
        (f"{COUNTED}{{a= 1\n", "not in the Prometheus format"),
        ("".join(f'{COUNTED}{{engine="{i}"}} 1\n' for i in range(30_000)), "at most 20,000"),
    ],
)
def test_metrics_that_are_none(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_metrics(text, "vllm")


def test_a_million_series_of_others_are_passed_over() -> None:
    """What was a minute of parsing; 200,000 lines are one second's worth at the very most."""
    others = "".join(f'vllm:lora_requests_info{{name="{i}"}} 1\n' for i in range(200_000))
    began_s = time.process_time()
    found = read_metrics(f"{others}{COUNTED} 7\n", "vllm")
    assert time.process_time() - began_s < 10
    assert (found.total("output_tokens"), len(found.series)) == (7.0, 1)


@pytest.mark.parametrize("digits", ["9" * 5000, "9" * 6, "-1", "\u0663"])
def test_positions_beyond_any_draft(digits: str) -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    with pytest.raises(InputError, match="must be a number from 0"):
        read_metrics(f'{name}{{position="{digits}"}} 1\n', "vllm").by_position("accepted_per_position")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{engine="0"} 5\n', '{engine="0"} 4\n'),
        ('{engine="0"} 5\nX{engine="1"} 5\n', '{engine="0"} 9\nX{engine="1"} 4\n'),
        ('{engine="0"} 5\nX{engine="1"} 5\n', '{engine="0"} 90\n'),
        (" 5\nprocess_start_time_seconds 100.5\n", " 50\nprocess_start_time_seconds 900.5\n"),
    ],
    ids=["fell", "fell-beside-one-that-grew", "a-rank-is-gone", "another-process-that-counted-more"],
)
def test_a_server_that_was_started_anew_is_named(before: str, after: str) -> None:
    first, then = (read_metrics(COUNTED + text.replace("X", COUNTED), "vllm") for text in (before, after))
    assert Window(first, first).grown("output_tokens") == 0.0
    with pytest.raises(InputError, match="the server was started anew in between"):
        Window(first, then)


@pytest.mark.parametrize("change", [{"version": "0.33.0"}, {"max_model_len": 8192}])
def test_a_server_exchanged_behind_the_back_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    """The rows stay, and are marked."""
    with FakeServer(Engine()) as fake:

        def exchange(nth: int) -> None:
            if nth == 2:
                for name, value in change.items():
                    setattr(fake.engine, name, value)

        fake.faults.cut_after = exchange
        code = run([*record(tmp_path, fake.url), "--json"])
    (bad,) = (one for one in json.loads(capsys.readouterr().out)["checks"] if one["ok"] is False)
    assert (code, bad["name"]) == (1, "same server")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 2


def test_words_without_end_are_not_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor what is no JSON: a row of it could not be read again."""
    usage = USAGE | {"more": "x" * 2**20, "nan": float("nan")}
    answer = _stream(tokens(5), tokens(6, end="stop"), usage=usage, id="i" * 2**20)
    with Hostile(vllm(answer)) as server:
        told(capsys, tmp_path, record(tmp_path, server.url))
    assert 0 < (tmp_path / "a.jsonl").stat().st_size < 4096
    assert "NaN" not in (tmp_path / "a.jsonl").read_text()


def test_a_key_cut_short_is_no_key_shown() -> None:
    assert without_key(f"it is {KEY}, {KEY[:9]}", KEY) == "it is (the API key), (the API key)"
    assert without_key("it is sk-", KEY) == "it is sk-"
    assert without_key("it is", None) == "it is"


def test_of_a_flood_a_line_s_bound_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 400 MiB the server gets rid of what the bound lets through, and of what the sockets hold."""
    sent_mib: list[int] = []

    def flood(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for _ in range(400):
            request.wfile.write(b"100000\r\n" + b"x" * 2**20 + b"\r\n")
            sent_mib.append(1)

    with Hostile(vllm(flood)) as server:
        code, err = told(capsys, tmp_path, record(tmp_path, server.url))
    assert (code, "a line of more than 16,777,216 bytes" in err) == (2, True), err
    assert 16 <= len(sent_mib) < 40


def test_work_apart_gives_its_value_and_its_error() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise InputError("a", 1, "2")

    async def seven() -> int:
        await asyncio.sleep(0)
        return 7

    assert run_apart(seven) == 7
    with pytest.raises(InputError, match="got 1"):
        run_apart(fails)
