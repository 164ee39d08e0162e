"""Workloads: arrivals, lengths, request logs, and the trace models that go with them."""

from kplan.workload.arrivals import constant, gamma, poisson, ramp, think_times
from kplan.workload.lengths import Lengths, fit_lengths
from kplan.workload.log import Prefix, RequestLog, load_log, session_prefix
from kplan.workload.profile import WorkloadLine, available_workloads, load_workload, to_yaml
from kplan.workload.workload import Workload

__all__ = [
    "Lengths",
    "Prefix",
    "RequestLog",
    "Workload",
    "WorkloadLine",
    "available_workloads",
    "constant",
    "fit_lengths",
    "gamma",
    "load_log",
    "load_workload",
    "poisson",
    "ramp",
    "session_prefix",
    "think_times",
    "to_yaml",
]
