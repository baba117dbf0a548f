"""JobOptions: which rollouts a job is made of."""

from fnmatch import fnmatch
from pathlib import Path

from benchflow_contracts import Model, Task, UsageError
from pydantic import Field

from benchflow.options import RunOptions
from benchflow.task_formats import runnable_tasks


class JobOptions(Model):
    """A plan: tasks x repeats, with one set of run options."""

    tasks_dir: Path
    run: RunOptions = RunOptions()
    jobs_dir: Path = Path("jobs")
    job_name: str | None = Field(default=None, pattern=r"^\w[\w.@-]*$")
    """One name, no path: the job's directory below `jobs_dir`."""
    repeats: int = Field(default=1, ge=1)
    concurrency: int = Field(default=4, ge=1)
    retries: int = Field(default=2, ge=0, le=3)
    """More tries of a rollout whose sandbox failed in a way that passes, such as an engine that
    was restarted. The evidence of each try is kept; the last one counts."""
    include: tuple[str, ...] = ()
    """Globs over task ids; empty takes all."""
    exclude: tuple[str, ...] = ()
    fail_under: float | None = None
    """The mean reward below which the job counts as failed."""

    def plan(self) -> "list[Slot]":
        """Return the planned rollouts in schedule order.

        Raises:
            TaskError: A task directory is malformed.
            UsageError: Nothing is left to run.
        """
        tasks = [task for task in runnable_tasks(self.tasks_dir) if self._wanted(task)]
        if not tasks:
            raise UsageError(
                f"no task to run below {str(self.tasks_dir)!r}",
                hint="check --tasks-dir, --include and --exclude",
            )
        return [Slot(task=t, repeat=r) for r in range(self.repeats) for t in tasks]

    def _wanted(self, task: Task) -> bool:
        names = (task.id, task.id.rsplit("/", 1)[-1])
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
