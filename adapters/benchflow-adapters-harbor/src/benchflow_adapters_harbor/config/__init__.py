"""`task.toml` as Harbor 0.24 reads it, as frozen records."""

from .artifact import Artifact, CollectHook
from .environment import HarborEnvironment, HarborMcpServer, Healthcheck, TpuSlice
from .harbor import HarborConfig, Package, Solution
from .network import NetworkPolicy
from .phases import AgentPhase, StepConfig, VerifierPhase
from .record import Record, Seconds, unknown_keys

__all__ = [
    "AgentPhase",
    "Artifact",
    "CollectHook",
    "HarborConfig",
    "HarborEnvironment",
    "HarborMcpServer",
    "Healthcheck",
    "NetworkPolicy",
    "Package",
    "Record",
    "Seconds",
    "Solution",
    "StepConfig",
    "TpuSlice",
    "VerifierPhase",
    "unknown_keys",
]
