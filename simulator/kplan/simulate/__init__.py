"""The one place that puts a scenario together and runs it."""

from kplan.simulate.draw import Drawn, draw_requests
from kplan.simulate.parallel import for_each
from kplan.simulate.records import Recorder, recording, scenario_record
from kplan.simulate.run import (
    SIMULATED,
    UNBOUNDED,
    Sustained,
    run_fleet,
    run_policy,
    sustained,
    sustained_qps,
)
from kplan.simulate.server import is_off, kv_tokens_of
from kplan.simulate.settle import MOST_WARM, Settling, default_requests, settling
from kplan.simulate.setup import Setup, at_rate, on_calibration, prepare, with_load
from kplan.simulate.source import POOL, MeanLengths, mean_lengths

__all__ = [
    "MOST_WARM",
    "POOL",
    "SIMULATED",
    "UNBOUNDED",
    "Drawn",
    "MeanLengths",
    "Recorder",
    "Settling",
    "Setup",
    "Sustained",
    "at_rate",
    "default_requests",
    "draw_requests",
    "for_each",
    "is_off",
    "kv_tokens_of",
    "mean_lengths",
    "on_calibration",
    "prepare",
    "recording",
    "run_fleet",
    "run_policy",
    "scenario_record",
    "settling",
    "sustained",
    "sustained_qps",
    "with_load",
]
