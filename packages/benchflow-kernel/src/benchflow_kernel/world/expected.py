"""A task whose agents may change more of the system than it says."""

from collections.abc import Sequence

from benchflow_contracts import Task, TaskVerifier

from .verifiers import with_verifiers


def expecting(task: Task, changes: Sequence[str]) -> Task:
    """Return `task` with `changes` expected beside its own, by the verifier of each step too."""

    def more(verifier: TaskVerifier, _where: str) -> TaskVerifier:
        expected = (*verifier.expects_changes, *changes)
        return verifier.model_copy(update={"expects_changes": expected})

    return with_verifiers(task, more)
