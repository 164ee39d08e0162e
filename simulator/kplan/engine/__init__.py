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
from kplan.engine.state import ALWAYS, UNBOUNDED_LEN, AnyTraces, Limits, MixedTraces, Traces, apart_of

__all__ = [
    "ALWAYS",
    "UNBOUNDED_LEN",
    "AnyTraces",
    "BatchCost",
    "Fleet",
    "Limits",
    "Load",
    "MixedTraces",
    "Replica",
    "Traces",
    "apart_of",
    "clients_of",
    "deal",
    "least_outstanding",
    "round_robin",
    "runs_compiled",
    "serve_apart",
    "serve_routed",
    "table_of",
]
