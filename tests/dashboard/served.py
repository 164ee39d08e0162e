"""A dashboard on a free port, in a thread or as the command."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask

from kplan.dashboard.server import BoundedServer, bound_socket

COMMAND = [sys.executable, "-c", "from kplan.cli.app import main; main()", "dashboard"]


@contextmanager
def served(make: Callable[[], Flask]) -> Iterator[str]:
    """The application on 127.0.0.1; gives its URL."""
    with bound_socket("127.0.0.1", 0) as bound:
        server = BoundedServer(make(), bound, lambda: None)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def command(*args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``kplan dashboard`` in a process of its own; gives it and its URL, once it serves."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--json", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        told = ""
        while not told.endswith("\n}\n"):
            line = process.stdout.readline()
            assert line, "ended before it told its URL"
            told += line
        yield process, json.loads(told)["url"]
    finally:
        process.kill()
        process.communicate()


def ask(url: str, body: object = None, **headers: str) -> tuple[int, str]:
    """Status and text of a GET, or of a POST of JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def answer_body(query: str) -> dict[str, Any]:
    """What the page sends to have ``query`` answered."""
    outputs = [
        ("answer", "children"), ("heading", "children"), ("evidence", "hidden"), ("files", "children"),
        ("shown", "data"),
    ]  # fmt: skip
    return {
        "output": ".." + "...".join(f"{name}.{prop}" for name, prop in outputs) + "..",
        "outputs": [{"id": name, "property": prop} for name, prop in outputs],
        "inputs": [
            {"id": "ask", "property": "data", "value": query},
            {"id": "done", "property": "data", "value": None},
        ],
        "changedPropIds": ["ask.data"],
    }
