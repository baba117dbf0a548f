"""The Open Reward Standard: BenchFlow's tasks served, and other servers' tasks in rollouts."""

from .errors import OrsError, OrsProtocolError, OrsSessionLostError, OrsUnreachableError

__all__ = ["OrsError", "OrsProtocolError", "OrsSessionLostError", "OrsUnreachableError"]
