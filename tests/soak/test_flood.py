"""A million requests at one moment: all are served, in order, each with all its tokens, within 3 GiB."""

from __future__ import annotations

import resource
import time
from dataclasses import replace

import numpy as np

from kplan.metrics import measure
from kplan.registry import parse_policy
from kplan.simulate import draw_requests, prepare, run_fleet
from tests.soak import figures
from tests.soak.scenarios import check_laws, scenario

REQUESTS = 1_000_000
MOST_GIB = 3.0


def test_a_million_requests_at_once_are_served() -> None:
    """The laws of every run, first come first served, and the memory that the design allows."""
    setup = prepare(scenario({"qps": 64, "policy": "fixed:3", "requests": REQUESTS}))
    spec = parse_policy("fixed:3")
    start_s = time.perf_counter()
    drawn = draw_requests(setup, REQUESTS, 0)
    flood = replace(drawn, unit_arrival_s=np.zeros(REQUESTS))
    fleet, scale = run_fleet(setup, spec, flood, qps=np.inf, whole=True)
    run = measure(fleet, scale)
    took_s = time.perf_counter() - start_s
    check_laws(fleet, run)
    (replica,) = fleet.replicas
    np.testing.assert_array_equal(replica.admitted, np.arange(REQUESTS))
    assert (replica.requests.arrival_s == 0).all()
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures.tell(
        "flood",
        requests=run.requests,
        output_tokens=run.output_tokens,
        steps=run.steps,
        preemptions=run.preemptions,
        wall_s=round(took_s, 1),
        peak_gib=round(peak_gib, 2),
    )
    assert peak_gib <= MOST_GIB
