"""``NUMBA_DISABLE_JIT=1``, numba's switch for debuggers and tracers, changes no byte."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

from kplan.engine import Replica, kernel
from kplan.jit import compiles
from kplan_policies.goodput import Goodput
from kplan_policies.oracle import Oracle
from tests.engine.scenes import ByTable, bounds, make_load, price


def digests() -> str:
    """Of a table, a rule and the oracle on one load: their requests, counters and sums."""
    load, cost = make_load(25, seed=4, qps=30.0, output=(5, 20)), price("eagle", max_k=3)
    told = []
    for policy in (ByTable(2), Goodput(), Oracle()):
        replica = Replica(load, bounds(load, max_k=3, max_num_seqs=8), cost, policy)
        assert replica.advance() == kernel.DONE
        kept = (replica.requests, replica.machine.counters, replica.machine.sums, replica.machine.k_steps)
        told.append(hashlib.sha256(b"".join(each.tobytes() for each in kept)).hexdigest())
    return "\n".join(told)


def test_plain_loops_end_in_the_bytes_of_compiled_ones() -> None:
    plain = {**os.environ, "NUMBA_DISABLE_JIT": "1" if compiles() else "0"}
    script = "import tests.engine.test_plain as t; print(t.compiles(), t.digests())"
    told = subprocess.run(
        [sys.executable, "-c", script], env=plain, capture_output=True, text=True, check=True
    ).stdout
    assert told.strip() == f"{not compiles()} {digests()}"
