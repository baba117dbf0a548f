"""A task whose agents may change more of the system than it says."""

from collections.abc import Sequence

from benchflow_contracts import Task, TaskVerifier


def expecting(task: Task, changes: Sequence[str]) -> Task:
    """Return `task` with `changes` expected beside its own, by the verifier of each step too."""

    def more(verifier: TaskVerifier) -> TaskVerifier:
        expected = (*verifier.expects_changes, *changes)
        return verifier.model_copy(update={"expects_changes": expected})

    config = task.config.model_copy(update={"verifier": more(task.config.verifier)})
    steps = tuple(step.model_copy(update={"verifier": more(step.verifier)}) for step in task.steps)
    return task.model_copy(update={"config": config, "steps": steps})
