"""Report the steps of a production agent to a BenchFlow server."""

from .client import Monitor, MonitorLimits, RolloutReporter, StepFields
from .sender import MonitorStats

__all__ = ["Monitor", "MonitorLimits", "MonitorStats", "RolloutReporter", "StepFields"]
