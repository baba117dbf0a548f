"""The entry point of `benchflow.environments`, which also loads without Gymnasium."""

from pathlib import Path

from benchflow_contracts import EnvironmentFactory, Task, UsageError


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a task, as `world.environment`.

    Raises:
        UsageError: Gymnasium is not installed.
    """
    try:
        from .world import environment as create  # noqa: PLC0415 - it needs an extra
    except ModuleNotFoundError as error:
        raise UsageError(
            f"task {task.id!r} needs the package {error.name!r}",
            hint="pip install 'benchflow-adapters-gymnasium[gymnasium]'",
        ) from error
    return create(task, manifest=manifest)
