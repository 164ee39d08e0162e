"""A real vLLM server on the CPU: started from a config file, asked over HTTP, stopped with all it started."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.live.install import Engine

HOST = "127.0.0.1"
START_LIMIT_S = 240.0  # 24-78 s were seen on two cores
STOP_LIMIT_S = 30.0
REQUEST_LIMIT_S = 120.0
_METRIC = re.compile(r"^(?P<name>vllm:\w+)(?:\{[^}]*\})? (?P<value>\S+)$", re.MULTILINE)


STEADY = {"OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""For steps that are timed: one thread, and the worker inside the engine's process. Apart, the two of them
poll each other without a pause; on two cores with the API server and a client, the time of one and the same
step doubled and halved from minute to minute."""


def environment() -> dict[str, str]:
    """Environment of an engine process: no network but the loopback, two threads, little memory."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": HOST,
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_NUM_THREADS": "2",
    }


@dataclass
class Server:
    """A running server; ``clean_stop`` says, once it was stopped, whether asking was enough."""

    url: str
    group: int
    log: Path
    clean_stop: bool | None = field(default=None)

    def generate(
        self, prompts: Sequence[Sequence[int]], output_tokens: int, at_a_time: int
    ) -> list[tuple[int, ...]]:
        """Greedy outputs (token ids) of ``prompts``, in their order, ``at_a_time`` of them in flight."""
        with ThreadPoolExecutor(at_a_time) as pool:
            return list(pool.map(lambda prompt: self._complete(prompt, output_tokens), prompts))

    def _complete(self, prompt: Sequence[int], output_tokens: int) -> tuple[int, ...]:
        answer = self._ask(
            "/v1/completions",
            {
                "prompt": list(prompt),
                "max_tokens": output_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "return_token_ids": True,
            },
        )
        return tuple(json.loads(answer)["choices"][0]["token_ids"])

    def counters(self) -> Counter[str]:
        """The server's metrics by name, summed over their labels."""
        sums: Counter[str] = Counter()
        for match in _METRIC.finditer(self._ask("/metrics")):
            sums[match["name"]] += float(match["value"])  # type: ignore[assignment]  # a Counter of floats
        return sums

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        # A proxy of the environment must not see requests to the loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=REQUEST_LIMIT_S) as reply:
            text: str = reply.read().decode()
        return text


@contextmanager
def serve(engine: Engine, config: Path, *flags: str, steady: bool = False) -> Iterator[Server]:
    """Run ``vllm serve --config CONFIG`` until the block ends, however it ends.

    Args:
        steady: for steps that are timed: the engine has a core of its own, and everything else, this process
            and what it starts included, the others, until the block ends.

    Raises:
        RuntimeError: the server died or did not come up in time (the end of its log is in the message).
    """
    port = _free_port()
    log = config.with_suffix(".log")
    vllm = str(engine.folder / "bin" / "vllm")
    command = [vllm, "serve", "--config", str(config), "--host", HOST, "--port", str(port)]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--enforce-eager", "--max-model-len", "1024", *flags],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment() | (STEADY if steady else {}),
            start_new_session=True,  # its own process group: one signal reaches the engine's workers too
        )
    server = Server(f"http://{HOST}:{port}", process.pid, log)
    cores = os.sched_getaffinity(0)
    try:
        _wait_until_healthy(server, process)
        if steady:
            _give_a_core(server.group)
        yield server
    finally:
        os.sched_setaffinity(0, cores)
        server.clean_stop = _stop(process)


def _give_a_core(group: int) -> None:
    """Give the engine's process the first core, and the API server and this process the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        return
    for member in group_members(group):
        name = Path(f"/proc/{member}/comm").read_text()
        cores = {first} if name.startswith("VLLM::EngineCor") else set(others)
        for thread in Path(f"/proc/{member}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
    os.sched_setaffinity(0, set(others))


def _wait_until_healthy(server: Server, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            server._ask("/health")
        except OSError:
            time.sleep(0.5)
        else:
            return
    tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-30:])
    raise RuntimeError(f"the server is not up (exit code {process.poll()}); end of {server.log}:\n{tail}")


def _stop(process: subprocess.Popen[bytes]) -> bool:
    """Ask the whole group to end, then make it; True when asking was enough."""
    _signal_group(process.pid, signal.SIGTERM)
    end = time.monotonic() + STOP_LIMIT_S
    while time.monotonic() < end:
        process.poll()  # reaps the leader
        if not group_members(process.pid):
            return True
        time.sleep(0.1)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait(timeout=STOP_LIMIT_S)
    return False


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def group_members(group: int) -> list[int]:
    """Ids of the living processes of a process group (a zombie that nobody reaped is not living)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:  # it ended while we looked
            continue
        if int(pgrp) == group and state != "Z":
            members.append(int(stat.parent.name))
    return members


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
