"""The serving engine: scheduler, KV blocks, compiled step, replicas and the SimPy server around them."""

from kplan.engine.asking import BatchCost, runs_compiled, table_of
from kplan.engine.load import Load, clients_of
from kplan.engine.replica import Replica
from kplan.engine.server import (
    Fleet,
    deal,
    least_outstanding,
    round_robin,
    serve_apart,
    serve_routed,
)
from kplan.engine.state import ALWAYS, UNBOUNDED_LEN, Limits, Traces

__all__ = [
    "ALWAYS",
    "UNBOUNDED_LEN",
    "BatchCost",
    "Fleet",
    "Limits",
    "Load",
    "Replica",
    "Traces",
    "clients_of",
    "deal",
    "least_outstanding",
    "round_robin",
    "runs_compiled",
    "serve_apart",
    "serve_routed",
    "table_of",
]
