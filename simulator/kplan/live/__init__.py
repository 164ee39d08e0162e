"""Talk to a running engine: record what it accepts, time its steps, verify what was predicted."""

from kplan.live.metrics import Snapshot, Window
from kplan.live.server import Server, ServerInfo

__all__ = ["Server", "ServerInfo", "Snapshot", "Window"]
