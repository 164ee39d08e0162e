"""The serving engine: scheduler, KV blocks, compiled step, replicas and the SimPy server around them."""

from kplan.engine.replica import BatchCost, Replica
from kplan.engine.server import Fleet, serve
from kplan.engine.state import Limits, Load, Traces

__all__ = ["BatchCost", "Fleet", "Limits", "Load", "Replica", "Traces", "serve"]
