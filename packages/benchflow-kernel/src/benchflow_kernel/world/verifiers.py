"""The verifiers of a task: its own, and those of its steps."""

from collections.abc import Callable

from benchflow_contracts import Task, TaskVerifier


def with_verifiers(task: Task, change: Callable[[TaskVerifier, str], TaskVerifier]) -> Task:
    """Return `task` with each verifier as `change` makes it, which is told its key."""
    config = task.config.model_copy(update={"verifier": change(task.config.verifier, "verifier")})
    steps = tuple(
        step.model_copy(update={"verifier": change(step.verifier, f"steps.{i}.verifier")})
        for i, step in enumerate(task.steps)
    )
    return task.model_copy(update={"config": config, "steps": steps})
