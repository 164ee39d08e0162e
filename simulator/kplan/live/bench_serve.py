"""The engine's own load generator, run in the engine's environment, and what it reports of every request.

``vllm bench serve`` of vLLM 0.32.0 (vllm/benchmarks/serve.py and datasets/datasets.py, released code read and
run), ``sglang.bench_serving`` of SGLang 0.5.23 (sglang/benchmark/serving.py, released code read).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from kplan.errors import InputError
from kplan.export import engines_of
from kplan.live.server import LOCAL
from kplan.live.workload import F64, I64, Demand
from kplan.live.workload_flags import Target, sglang_flags, vllm_flags

POLL_S = 0.1
STOP_S = 10.0
"""Wait for a load generator that was asked to end."""
_KEYS = ("OPENAI_API_KEY", "API_KEY")
"""Variables whose key a load generator sends, whatever server it loads."""


@dataclass(frozen=True)
class Traffic:
    """What a load generator saw of every request, in the order of the demand.

    Attributes:
        start_s: (n,) seconds from the first request; None where the generator does not say.
        ttft_s: (n,) seconds to the first token.
        decode_s: (n,) seconds from the first token to the last.
        prompt_len, output_len: (n,) tokens.
        chunks: (n,) messages with tokens after the first: steps, where each sends its own.
        duration_s: from the first request to the last token.
        source: the generator.
    """

    start_s: F64 | None
    ttft_s: F64
    decode_s: F64
    prompt_len: I64
    output_len: I64
    chunks: I64
    duration_s: float
    source: str

    def __len__(self) -> int:
        return len(self.output_len)


def command_of(engine: str, python: Path | None) -> list[str] | None:
    """What starts the engine's load generator; None when it is nowhere.

    Args:
        python: interpreter of the engine's environment; None: ``vllm`` on the PATH.

    Raises:
        InputError: no such interpreter, or one without the engine.
    """
    module = {"vllm": "vllm.entrypoints.cli.main", "sglang": "sglang.bench_serving"}[engine]
    if python is None:
        found = shutil.which("vllm") if engine == "vllm" else None
        return None if found is None else [found, "bench", "serve"]
    if engine not in engines_of(python, "--engine-python"):
        raise InputError(
            "--engine-python", str(python), f"it has no {engine}", f"give that of {engine}'s environment"
        )
    return [str(python), "-m", module, *(["bench", "serve"] if engine == "vllm" else [])]


def run_load(
    command: list[str], target: Target, sent: Demand, load: Mapping[str, Any], limit_s: float
) -> Traffic:
    """Send the requests and wait for their answers.

    Args:
        command: of :func:`command_of`.
        load: ``qps``, ``burstiness`` and ``arrivals`` of an open loop.

    Raises:
        InputError: a load that the generator does not offer, a generator that fails or is not done in time,
            requests that failed.
    """
    with tempfile.TemporaryDirectory(prefix="kplan-load-") as name:
        folder = Path(name)
        result = folder / "result.json"
        make = vllm_flags if target.engine == "vllm" else sglang_flags
        flags = make(target, sent, load, result)
        log = folder / "log.txt"
        _run([*command, *flags], log, _environment(target), limit_s)
        try:
            lines = result.read_text(encoding="utf-8").splitlines()
            record = json.loads(lines[-1])
        except (OSError, ValueError, IndexError):
            raise InputError(
                "load generator", _last_line(log), "wrote no result", "mend what it says"
            ) from None
    return read_result(record, target.engine)


def _environment(target: Target) -> dict[str, str]:
    """That of the generator: no proxy before a server of this machine, the same random tokens every time.

    The key of the server, and no other, is where both generators look for one (vllm/benchmarks/lib/
    endpoint_request_func.py, sglang/benchmark/serving.py); a command line could be read by all users.
    """
    own = {"PYTHONHASHSEED": "0"}
    if httpx.URL(target.url).host in LOCAL:
        own |= dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(sorted(LOCAL)))
    if target.api_key:
        own["OPENAI_API_KEY"] = target.api_key
    return {key: value for key, value in os.environ.items() if key not in _KEYS} | own


def _run(command: list[str], log: Path, environment: dict[str, str], limit_s: float) -> None:
    """Run to the end, or end it with all it started. Raises InputError when it fails or takes too long."""
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InputError("load generator", command[0], error.strerror or "cannot be started") from None
        try:
            end = time.monotonic() + limit_s
            while process.poll() is None:
                if time.monotonic() > end:
                    raise InputError(
                        "--limit-s", f"{limit_s:.0f} s left for the load", "its requests were not done",
                        "raise it, or send fewer --requests",
                    )  # fmt: skip
                time.sleep(POLL_S)
        finally:
            _end(process)
    if process.returncode:
        raise InputError(
            "load generator", _last_line(log), f"it ended with exit code {process.returncode}",
            "mend what it says; is the tokenizer right (--tokenizer)?",
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _last_line(log: Path) -> str:
    """The last line that says something."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return next((line.strip()[:200] for line in reversed(lines) if line.strip(" ^~\t")), "nothing")


def read_result(record: Mapping[str, Any], engine: str) -> Traffic:
    """The requests of a result with details.

    Raises:
        InputError: a request that failed (with what its error says), or a result without details.
    """
    name = "vllm bench serve" if engine == "vllm" else "sglang.bench_serving"
    try:
        _refuse_failed(record)
        ttft = np.array(record["ttfts"], np.float64)
        gaps = [np.array(one, np.float64) for one in record["itls"]]
        start = record.get("start_times")
        traffic = Traffic(
            start_s=None if start is None else np.array(start, np.float64) - min(start),
            ttft_s=ttft,
            decode_s=np.array([float(one.sum()) for one in gaps]),
            prompt_len=np.array(record["input_lens"], np.int64),
            output_len=np.array(record["output_lens"], np.int64),
            chunks=np.array([len(one) for one in gaps], np.int64),
            duration_s=float(record["duration"]),
            source=name,
        )
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"result of {name}", str(error), "is not in it, or is of another kind") from None
    return traffic


def _refuse_failed(record: Mapping[str, Any]) -> None:
    """Raise InputError where a request failed, or none was made."""
    told = [str(one) for one in record.get("errors") or [] if one]
    count = len(record.get("ttfts") or [])
    failed = count - int(record.get("completed", count))
    if failed or told or not count:
        last = told[0].strip().splitlines()[-1][:160] if told else "no answer"
        raise InputError(
            "load", f"{failed or len(told)} of {count} requests failed", last, "look at the server's log"
        )
