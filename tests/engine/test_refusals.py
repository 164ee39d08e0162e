"""Loads that a replica can never serve are refused in one line, before a step is run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kplan.engine import Limits, Load, Replica, kernel
from kplan.errors import InputError
from tests.engine.scenes import ByTable, bounds, make_load, price, with_sessions, with_shared_beginnings

LOAD = make_load(4, prompt=(100, 100), output=(20, 20))


@pytest.mark.parametrize(
    ("load", "limits", "told"),
    [
        (LOAD, bounds(LOAD, max_len=119), "request length: got 120, the engine allows 119 tokens"),
        # 120 tokens and 8 slots of a step take exactly 8 blocks of 16
        (
            LOAD,
            bounds(LOAD, total_blocks=7),
            "request length: got 128, the KV cache of one replica",
        ),
        (with_shared_beginnings(LOAD, 0, 24), bounds(LOAD), "unit of prefix: got 24, must be whole blocks"),
        (
            replace(with_sessions(LOAD, 0, 1.0), concurrency=2),
            bounds(LOAD, closed=True),
            "concurrency: got 2, requests that wait for another's end come by themselves",
        ),
    ],
    ids=["too-long", "too-large", "units", "sessions"],
)
def test_what_can_never_be_served_is_refused_in_one_line(load: Load, limits: Limits, told: str) -> None:
    with pytest.raises(InputError) as caught:
        Replica(load, limits, price(), ByTable(0))
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)


def test_the_bounds_themselves_are_served() -> None:
    limits = bounds(LOAD, max_len=120, total_blocks=8)
    replica = Replica(LOAD, limits, price(), ByTable(7))
    assert replica.advance() == kernel.DONE
    np.testing.assert_array_equal(replica.requests.emitted, 20)
