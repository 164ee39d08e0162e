"""Workloads: arrivals, lengths, and the trace models that go with them."""

from kplan.workload.arrivals import gamma, poisson
from kplan.workload.lengths import Lengths, fit_lengths
from kplan.workload.profile import WorkloadLine, available_workloads, load_workload, to_yaml
from kplan.workload.workload import Workload

__all__ = [
    "Lengths",
    "Workload",
    "WorkloadLine",
    "available_workloads",
    "fit_lengths",
    "gamma",
    "load_workload",
    "poisson",
    "to_yaml",
]
