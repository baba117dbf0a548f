"""The Open Reward Standard: BenchFlow's tasks served, and other servers' tasks in rollouts."""

from .client import OrsClient, OrsSession
from .errors import OrsError, OrsProtocolError, OrsSessionLostError, OrsUnreachableError

__all__ = [
    "OrsClient",
    "OrsError",
    "OrsProtocolError",
    "OrsSession",
    "OrsSessionLostError",
    "OrsUnreachableError",
]
