"""`task.toml` as Harbor 0.24 understands it, frozen."""

from .agent import AgentPhase
from .artifact import Artifact, CollectHook
from .environment import HarborEnvironment, HarborMcpServer, Healthcheck, TpuSlice
from .harbor import HarborConfig, Package, Solution
from .network import NetworkPolicy
from .record import Record, Seconds
from .step import StepConfig
from .unknown import unknown_keys
from .verifier import VerifierPhase

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
