"""JobOptions: the rollouts of a job."""

import re
from fnmatch import fnmatch
from pathlib import Path

from benchflow_contracts import ListedTask, Model, Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.task_formats import runnable_tasks
from pydantic import Field, field_validator


class JobOptions(Model):
    """The plan of a job: tasks x repeats, with one configuration of a run."""

    tasks_dir: str | Path
    """A task, a directory of tasks, the URL of a git repository or a registry.json."""
    dataset: str | None = None
    """Of a registry.json: `NAME` or `NAME@VERSION`."""
    run: RunConfig = RunConfig()
    """The configuration of each rollout."""
    jobs_dir: Path = Path("jobs")
    job_name: str | None = None
    """The name of the job's directory below `jobs_dir`, not a path."""
    repeats: int = Field(default=1, ge=1)
    concurrency: int = Field(default=4, ge=1)
    retries: int = Field(default=2, ge=0, le=3)
    """More tries of a rollout whose sandbox failed in a way that passes, such as an engine that
    was restarted, in its run or its grading. The evidence of each try is kept; the last counts."""
    include: tuple[str, ...] = ()
    """Globs over task ids; empty takes all."""
    exclude: tuple[str, ...] = ()
    max_tasks: int | None = Field(default=None, ge=1)
    """Maximum number of tasks (default: all that can run here). The first ones are taken."""

    @field_validator("job_name")
    @classmethod
    def _is_one_name(cls, name: str | None) -> str | None:
        if name is not None and re.fullmatch(r"\w[\w.@-]*", name) is None:
            raise ValueError("it is not one name of letters, digits, '_', '.', '@' and '-'")
        return name

    def plan(self) -> "Planned":
        """Return the rollouts in schedule order, and the tasks that cannot be run here.

        Raises:
            TaskError: The source is malformed, or a task of our own format.
            UsageError: There is no task, neither to run nor refused.
        """
        found = runnable_tasks(
            str(self.tasks_dir), dataset=self.dataset, options=self.run.adapter_options()
        )
        tasks = [task for task in found.tasks if self._wanted(task.id)]
        refused = tuple(task for task in found.refused if self._wanted(task.name))
        if self.max_tasks is not None and tasks:
            tasks, refused = tasks[: self.max_tasks], ()
        if not tasks and not refused:
            raise UsageError(
                f"no task to run below {str(self.tasks_dir)!r}",
                hint="check --tasks-dir, --include and --exclude",
            )
        slots = [Slot(task=t, repeat=r) for r in range(self.repeats) for t in tasks]
        return Planned(slots=tuple(slots), refused=refused)

    def _wanted(self, name: str) -> bool:
        names = (name, name.rsplit("/", 1)[-1])
        included = not self.include or any(fnmatch(n, p) for n in names for p in self.include)
        return included and not any(fnmatch(n, p) for n in names for p in self.exclude)


class Slot(Model):
    """One planned rollout."""

    task: Task
    repeat: int

    @property
    def id(self) -> str:
        """Unique in the job, and the same when the job is resumed."""
        return f"{self.task.id}#{self.repeat}"


class Planned(Model):
    """The planned rollouts of a job, and the refused tasks."""

    slots: tuple[Slot, ...]
    refused: tuple[ListedTask, ...] = ()
    """Tasks of the source that cannot be run here, each with its reasons."""
