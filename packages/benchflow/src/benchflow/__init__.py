"""BenchFlow: the environment-and-rollout engine for agentic RL.

    import benchflow as bf

    result = await bf.run("benchmarks/clawsbench/tasks/archive-newsletters", agent="oracle")
    print(result.reward)

The names below are loaded on first use, so that the command line starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchflow_contracts import (
        BenchFlowError,
        Endpoint,
        Role,
        RolloutTree,
        Task,
        Trajectory,
    )
    from benchflow_engine.config import RunConfig
    from benchflow_engine.rollout import RunResult, run
    from benchflow_jobs import JobOptions, JobReport, run_job
    from benchflow_kernel import (
        AskUserBranch,
        BranchBudget,
        RolloutConfig,
        Scene,
        Turn,
        find_tasks,
        load_task,
    )

__all__ = [
    "AskUserBranch",
    "BenchFlowError",
    "BranchBudget",
    "Endpoint",
    "JobOptions",
    "JobReport",
    "Role",
    "RolloutConfig",
    "RolloutTree",
    "RunConfig",
    "RunResult",
    "Scene",
    "Task",
    "Trajectory",
    "Turn",
    "find_tasks",
    "load_task",
    "run",
    "run_job",
]

_MODULES = {
    **dict.fromkeys(("AskUserBranch", "BranchBudget", "RolloutConfig"), "benchflow_kernel"),
    **dict.fromkeys(("Scene", "Turn", "find_tasks", "load_task"), "benchflow_kernel"),
    **dict.fromkeys(("JobOptions", "JobReport", "run_job"), "benchflow_jobs"),
    "RunConfig": "benchflow_engine.config",
    **dict.fromkeys(("RunResult", "run"), "benchflow_engine.rollout"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'benchflow' has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "benchflow_contracts")), name)
