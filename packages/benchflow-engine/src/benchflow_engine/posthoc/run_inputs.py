"""The inputs of a stored rollout, to run it again: its task and its configuration."""

from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import StoreError, Task, UsageError
from benchflow_store import StoredConfig, StoredRollout
from pydantic import ValidationError

from benchflow_engine.config import RunConfig
from benchflow_engine.task_formats import runnable_task
from benchflow_engine.task_override import TaskOverride, overridden_task


@dataclass(frozen=True, slots=True)
class RunInputs:
    """A stored rollout with its task and configuration."""

    stored: StoredRollout
    task: Task
    config: RunConfig

    @classmethod
    def read(cls, directory: Path, *, trust: bool = False) -> "RunInputs":
        """Read the rollout in `directory`.

        The configuration names code to import, host variables to send and their receiver; the task
        has a verifier that runs. Without `trust`, only this user's own runs are accepted.

        Raises:
            StoreError: A file of the rollout is missing or damaged.
            TaskError: The task cannot be loaded.
            UsageError: The task has changed, or another user ran the rollout.
        """
        stored = StoredRollout(directory)
        record = stored.config
        try:
            config = RunConfig.model_validate(record.run)
        except ValidationError as error:
            raise StoreError(
                f"cannot read the rollout's configuration: {error}",
                where=str(record.path),
                hint="only a rollout of `bench` has a configuration",
            ) from error
        if not (trust or record.is_own):
            raise UsageError(
                f"{str(directory)!r} was not run by this user here, or was changed since",
                hint=f"read {str(record.path)!r}: it names what will run; then give --trust",
            )
        task = runnable_task(record.task_path, config.adapter_options())
        if task.digest != record.task_digest:
            raise UsageError(
                f"task {task.id!r} was changed after it was run",
                hint="check out the same version of the task, or run the task again",
            )
        return cls(stored, _overridden(task, record), config)


def _overridden(task: Task, record: StoredConfig) -> Task:
    """Return the task with the values of the job that ran it."""
    try:
        override = TaskOverride.model_validate(record.override)
    except ValidationError as error:
        raise StoreError(f"damaged record: {error}", where=str(record.path)) from error
    return overridden_task(task, override.image, override)
