"""From request and step records to means, percentiles, goodput, intervals and verdicts on the run itself."""

from kplan.metrics.measured import Measured, backlog, measure, run_mean
from kplan.metrics.steady import Steadiness, mser5, steadiness
from kplan.metrics.summary import (
    acceptance_length,
    attainment,
    goodput_qps,
    interval,
    k_share,
    mean_batch,
    mean_context,
    mean_interval,
    mean_k,
    mix_result,
    ratio,
    stat_ms,
    time_split,
    total,
)

__all__ = [
    "Measured",
    "Steadiness",
    "acceptance_length",
    "attainment",
    "backlog",
    "goodput_qps",
    "interval",
    "k_share",
    "mean_batch",
    "mean_context",
    "mean_interval",
    "mean_k",
    "measure",
    "mix_result",
    "mser5",
    "ratio",
    "run_mean",
    "stat_ms",
    "steadiness",
    "time_split",
    "total",
]
