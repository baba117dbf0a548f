"""The entry point of the group `inspect_ai`: Inspect imports this module to find our parts."""

# pyright: basic, reportMissingImports=false

from .agent.solver import bf_agent, bf_sandbox
from .sandbox.environment import BenchflowSandboxEnvironment
from .tasks.gateway_model import benchflow

__all__ = ["BenchflowSandboxEnvironment", "benchflow", "bf_agent", "bf_sandbox"]
