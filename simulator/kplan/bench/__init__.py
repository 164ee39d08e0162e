"""How fast kplan is on this machine; every figure is measured with its answer checked."""

from kplan.bench.suite import measure

__all__ = ["measure"]
