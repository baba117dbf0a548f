"""Errors that only the kernel raises."""

from benchflow_contracts import SnapshotError, TaskError, UsageError


class UnknownProviderError(UsageError):
    """No entry point has this name. The message lists the known names."""

    default_hint = "install the package that provides it, or check the spelling"


class SetupError(TaskError):
    """A command that prepares the sandbox of a task, or of one of its steps, failed."""

    default_hint = "run the command in the task's image"


class PriorContextError(TaskError):
    """The task starts after the work of another agent, and the chosen agent cannot load it."""

    default_hint = "run the task with --agent oracle"


class FidelityError(SnapshotError):
    """The required fidelity is not available. The message names the missing ability."""


class WorldFidelityError(FidelityError):
    """A world outside the sandbox cannot be copied at the required fidelity."""
