"""Tasks of Inspect as tasks of BenchFlow: the adapter, their solvers, setup and scorers."""

from .adapter import InspectAdapter
from .reward import InspectReward, inspect_rewards
from .setup_solver import inspect_environments
from .solver_agent import InspectSolverAgent

__all__ = [
    "InspectAdapter",
    "InspectReward",
    "InspectSolverAgent",
    "inspect_environments",
    "inspect_rewards",
]
