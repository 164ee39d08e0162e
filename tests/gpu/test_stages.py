"""The stages of the script with stand-ins for what they call: order, limits, and no server left."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "run.sh"
PYTHON = sys.executable

KPLAN = """#!/usr/bin/env bash
echo "kplan $*" >> "{calls}"
[[ $1 != "$REFUSES" ]] || {{ echo "error: refused" >&2; exit 2; }}
[[ $1 != "$HANGS" ]] || sleep 60
"""
OWN_PYTHON = """#!/usr/bin/env bash
[[ $2 != tests.gpu.hardware ]] || echo card
"""
GPU_PYTHON = """#!/usr/bin/env bash
echo "gpu ${{*//$'\\n'/ }}" >> "{calls}"
[[ $2 != vllm.* ]] || exec {python} {server} {port}
"""
SERVER = """
import http.server, os, sys
from pathlib import Path

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

Path(__file__).with_name(f"server-{os.getpid()}").touch()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A checkout whose interpreters note how they were called."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    names = {"calls": tmp_path / "calls", "python": PYTHON, "server": tmp_path / "server.py", "port": port}
    (tmp_path / "tests" / "gpu").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "tests" / "gpu" / "run.sh")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "server.py").write_text(SERVER)
    for name, text in (("kplan", KPLAN), ("python", OWN_PYTHON), ("gpu-python", GPU_PYTHON)):
        path = tmp_path / ".venv" / "bin" / name
        path.write_text(text.format(**names))
        path.chmod(0o755)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "prompts").write_text("a prompt\n")
    (tmp_path / "port").write_text(str(port))
    return tmp_path


def _begin(folder: Path, *, limit_s: int = 60, refuses: str = "", hangs: str = "") -> subprocess.Popen[bytes]:
    """The script at its work; ``kplan`` refuses one command, and hangs in one."""
    port = (folder / "port").read_text()
    command = [str(folder / "tests/gpu/run.sh"), "--out", "run", "--hardware", "card", "--port", port]
    command += ["--gpu-python", ".venv/bin/gpu-python", "--serve", "model", "--prompts", "prompts"]
    command += ["--limit-s", str(limit_s)]
    env = {"PATH": "/usr/bin:/bin", "REFUSES": refuses, "HANGS": hangs}
    return subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.DEVNULL)


def _run(folder: Path, **how: Any) -> tuple[int, dict[str, str], list[str]]:
    """Exit code, stage -> result, and the calls in their order."""
    code = _begin(folder, **how).wait(timeout=90)
    lines = (folder / "run" / "stages.tsv").read_text().splitlines()[1:]
    stages = dict(line.split("\t")[:2] for line in lines)
    return code, stages, (folder / "calls").read_text().splitlines()


STAGES = (
    "plan",
    "microbench",
    "calibrate",
    "start-table",
    "record",
    "calibrate-url",
    "replay",
    "recommend",
    "start-plan",
    "verify",
)


def _servers_alive(folder: Path) -> list[str]:
    started = [path.name.removeprefix("server-") for path in folder.glob("server-*")]
    assert started
    return [pid for pid in started if Path("/proc", pid).exists()]


def test_a_served_model_goes_through_every_stage(stand_in: Path) -> None:
    code, stages, calls = _run(stand_in)
    assert (code, stages) == (0, dict.fromkeys(STAGES, "done"))
    kplan = [call.split()[1] for call in calls if call.startswith("kplan")]
    assert kplan == ["calibrate", "record", "calibrate", "traces", "recommend", "verify"]
    served = [call for call in calls if " serve " in call]
    assert "num_speculative_tokens_per_batch_size" in served[0]
    assert f"--config {stand_in}/run/plan/vllm.yaml" in served[1]
    assert f"--tables {stand_in}/run/tables" in next(call for call in calls if "calibrate --url" in call)
    assert f"--calibration {stand_in}/run/calibration-served.yaml" in calls[-1]
    assert not _servers_alive(stand_in)


def test_a_stage_that_fails_is_told_and_the_others_go_on_without_it(stand_in: Path) -> None:
    code, stages, calls = _run(stand_in, refuses="calibrate")
    assert code == 1
    failed = {"calibrate": "failed (2)", "calibrate-url": "failed (2)"}
    assert stages == dict.fromkeys(STAGES, "done") | failed
    assert "--calibration" not in calls[-1]  # verify prices by what kplan has for the card
    assert not _servers_alive(stand_in)


def test_a_stage_that_hangs_is_cut_with_the_whole(stand_in: Path) -> None:
    code, stages, _ = _run(stand_in, limit_s=6, hangs="record")
    assert code == 1
    assert [stages[name] for name in ("start-table", "record", "calibrate-url", "replay")] == [
        "done",
        "cut",
        "cut",
        "cut",
    ]
    assert not {"recommend", "verify"} & stages.keys()
    assert not _servers_alive(stand_in)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_script_that_is_stopped_stops_its_server(stand_in: Path, number: signal.Signals) -> None:
    script = _begin(stand_in, hangs="record")
    end = time.monotonic() + 30
    calls = stand_in / "calls"
    while not calls.exists() or "kplan record" not in calls.read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    script.send_signal(number)
    assert script.wait(timeout=30) == 1
    assert not _servers_alive(stand_in)
