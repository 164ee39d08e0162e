"""``kplan dashboard``: what it refuses, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest

from kplan.cli.app import run
from kplan.dashboard.server import bound_socket
from tests.dashboard.served import ask, command


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--host", "0.0.0.0"], "a token is needed"),
        (["--host", "192.0.2.1"], "a token is needed"),
        (["--host", "0"], "a token is needed"),
        (["--host", "::"], "a token is needed"),
        (["--host", "127.0.0.2"], "a token is needed"),
        (["--token-file", "no/such/file"], "cannot be read"),
        (["--host", "0.0.0.0", "--token", "short"], "16 or more"),
        (["--host", "no.such.host.invalid", "--token", "0123456789abcdef"], "--host"),
        (["--host", "a" * 300, "--token", "0123456789abcdef"], "is no address"),
        (["--port", "70000"], "65535"),
    ],
)
def test_what_is_unsafe_or_cannot_be_is_one_line(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KPLAN_DASHBOARD_TOKEN", raising=False)
    assert run(["dashboard", *args]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert [line[:6] for line in told.err.splitlines() if not line.startswith("note: ")] == ["error:"]


def test_a_localhost_that_is_elsewhere_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KPLAN_DASHBOARD_TOKEN", raising=False)
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: real("0.0.0.0", *rest, **more))
    assert run(["dashboard", "--host", "localhost", "--port", "0"]) == 2
    told = capsys.readouterr().err
    assert "got 'localhost', others could ask (it is 0.0.0.0): a token is needed" in told
    assert told.count("\n") == 1


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert run(["dashboard", "--port", str(taken.getsockname()[1])]) == 2
    told = capsys.readouterr().err
    assert "in use" in told
    assert "give another --port" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_it_serves_with_a_token_and_ends_cleanly(
    sent: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KPLAN_DASHBOARD_TOKEN", "0123456789abcdef")
    with command() as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert ask(url)[0] == 403
        assert ask(url, Authorization="Bearer 0123456789abcdef")[0] == 200
        process.send_signal(sent)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == code
        assert errors == ""
        with pytest.raises(OSError, match="refused"), socket.create_connection(_address(url)):
            pass
        with bound_socket(*_address(url)) as again:  # whoever starts it anew gets its port
            again.listen()


def _address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    return host, int(port)


def test_help_loads_no_page() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys; from kplan.cli.app import run; run(['dashboard', '--help']); "
         "sys.exit('dash' in sys.modules or 'numpy' in sys.modules)"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "--token" in told.stdout
