"""The Open Reward Standard: BenchFlow's tasks served, and other servers' tasks in rollouts."""

from .client import OrsClient, OrsSession
from .errors import OrsError, OrsProtocolError, OrsSessionLostError, OrsUnreachableError
from .group import OrsGroupReward

__all__ = [
    "OrsClient",
    "OrsError",
    "OrsGroupReward",
    "OrsProtocolError",
    "OrsSession",
    "OrsSessionLostError",
    "OrsUnreachableError",
]
