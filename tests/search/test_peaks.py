"""When a load that changes is at its highest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kplan.config.scenario import make_scenario
from kplan.search.peaks import Peak, busiest, peak_of
from kplan.simulate import draw_requests, prepare


def test_the_busiest_stretch_begins_with_an_arrival_and_excludes_its_end() -> None:
    """Within 10 s from 15: 15, 16, 24; the one at 25 lies outside."""
    assert busiest(np.array([0.0, 9.0, 15.0, 16.0, 24.0, 25.0, 40.0]), 10.0) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("first", "last", "peak"), [(4.0, 30.0, Peak(30, "at its end")), (9.0, 1.0, Peak(9, "at its beginning"))]
)
def test_a_ramp_is_highest_at_one_end(first: float, last: float, peak: Peak) -> None:
    setup = prepare(make_scenario({"qps": first, "arrivals": "ramp", "ramp_to_qps": last}))
    assert peak_of(setup, draw_requests(setup, 10, 0)) == peak


def test_a_log_is_highest_in_its_busiest_minute_at_the_rate_it_is_stretched_to(tmp_path: Path) -> None:
    """One a minute for ten minutes, then 30 a second apart: 40 requests in 629 s."""
    times = [60 * i for i in range(10)] + [600 + i for i in range(30)]
    log = tmp_path / "log.csv"
    log.write_text("t_s,input_tokens,output_tokens\n" + "".join(f"{t},10,10\n" for t in times))
    setup = prepare(make_scenario({"replay": log}))
    assert peak_of(setup, draw_requests(setup, 40, 0)) == Peak(30 / 60, "in its busiest minute")
    fast = prepare(make_scenario({"replay": log, "qps": 2 * 39 / 629}))  # 0..270 by 30 s, then 0.5 s apart
    peak = peak_of(fast, draw_requests(fast, 40, 0))
    assert peak is not None
    assert peak.qps == pytest.approx(31 / 60)  # 270 and all thirty from 300 to 314.5


def test_a_steady_load_and_a_log_of_less_than_a_minute_have_none(tmp_path: Path) -> None:
    setup = prepare(make_scenario({"qps": 4.0}))
    assert peak_of(setup, draw_requests(setup, 10, 0)) is None
    log = tmp_path / "log.csv"
    log.write_text("t_s,input_tokens,output_tokens\n0,10,10\n59,10,10\n")
    short = prepare(make_scenario({"replay": log}))
    assert peak_of(short, draw_requests(short, 2, 0)) is None
