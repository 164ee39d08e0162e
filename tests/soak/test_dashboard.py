"""Floods of the dashboard of this machine, its simulator answering, while others dribble and go away."""

from __future__ import annotations

import json
import random
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psutil

from tests.dashboard.served import answer_body, ask, command
from tests.soak.figures import seconds, tell

AT_ONCE = 200
QUESTIONS = [f"qps={qps}&workload={load}" for load in ("gsm8k", "sharegpt") for qps in (4, 8, 16, 32, 48, 64)]
BAD = ("qps=nan", "model=/etc/passwd", "qps=1&qps=2", "x" * 2000)
SETTLED_ROUNDS = 3
"""Floods after which memory may not grow any more: threads and caches are there."""
GROWTH_PERCENT = 20.0


def test_floods_are_answered_rightly_or_refused_and_memory_stays() -> None:
    """Each answer is that of the same question asked alone, before."""
    chance, told, settled = random.Random(0), Counter[str](), 0
    with command() as (process, url):
        where = f"{url.rstrip('/')}/_dash-update-component"
        right = {one: ask(where, answer_body(one)) for one in (*QUESTIONS, *BAD)}
        assert {status for status, _ in right.values()} == {200}
        assert len({right[one][1] for one in QUESTIONS}) == len(QUESTIONS)
        memory = psutil.Process(process.pid).memory_info
        end, rounds = time.monotonic() + seconds(120), 0
        while time.monotonic() < end or rounds <= SETTLED_ROUNDS:
            told += _flood(url, where, right, chance)
            rounds += 1
            assert process.poll() is None, "crashed"
            if rounds == SETTLED_ROUNDS:
                settled = memory().rss
        growth = 100 * (memory().rss / settled - 1)
        threads = psutil.Process(process.pid).num_threads()
        process.terminate()
        errors = process.communicate(timeout=120)[1]
    tell(
        "dashboard", requests=rounds * AT_ONCE, answered=told["right"], wrong=told["wrong"],
        refused=told["refused"], gone=told["gone"], crashed=int(process.returncode != 143),
        rss_growth_percent=round(growth, 2), threads=threads,
    )  # fmt: skip
    assert told["wrong"] == 0
    assert told["right"] > told["refused"]
    assert (process.returncode, errors) == (143, "")
    assert growth < GROWTH_PERCENT
    assert threads < 300


def _flood(url: str, where: str, right: dict[str, tuple[int, str]], chance: random.Random) -> Counter[str]:
    """AT_ONCE requests, of which some go away before their answer, beside as many that never end."""
    port = int(url.rstrip("/").rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(AT_ONCE)]
    for one in idle:
        one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
    jobs = [(chance.choice(list(right)), chance.random() < 0.1) for _ in range(AT_ONCE)]

    def one_of(job: tuple[str, bool]) -> str:
        query, leaves = job
        if leaves:
            return _leave(port, query)
        got = ask(where, answer_body(query))
        if got[0] == 503 and got[1].startswith("error: busy"):
            return "refused"
        return "right" if got == right[query] else "wrong"

    with ThreadPoolExecutor(AT_ONCE) as people:
        told = Counter(people.map(one_of, jobs))
    for one in idle:
        one.close()
    return told


def _leave(port: int, query: str) -> str:
    body = json.dumps(answer_body(query)).encode()
    head = "POST /_dash-update-component HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return "gone"
