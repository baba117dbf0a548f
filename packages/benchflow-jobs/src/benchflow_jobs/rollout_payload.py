"""The payload of a dispatch: one rollout of a job, as a process on another host builds it."""

import asyncio
from pathlib import Path
from typing import Any

from benchflow_contracts import RareModel, Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.secrets import recorded_config, with_secrets
from benchflow_engine.task_formats import runnable_task
from benchflow_engine.task_override import TaskOverride, overridden_task

from .begin import PlannedJob


class RolloutPayload(RareModel):
    """A task, by its path and digest, and the configuration of its rollout. Secrets are masked."""

    task: Path
    """The absolute path of the task's directory."""
    digest: str
    run: RunConfig
    image: str | None = None
    """Instead of the task's own."""
    override: TaskOverride = TaskOverride()
    resumes: str | None = None
    """The rollout of an earlier attempt, whose rest is run."""

    @classmethod
    def dump(cls, job: PlannedJob, index: int, resumes: str | None = None) -> dict[str, Any]:
        """Return the payload of a slot as JSON."""
        plan = job.plan
        planned = plan.tasks[plan.slots.place(index)[1]]
        payload: dict[str, Any] = {
            "task": str(job.tasks[planned.id].path.resolve()),
            "digest": planned.digest,
            "run": _portable(recorded_config(plan.run_config(index), (planned.id,))),
        }
        image, override = plan.image(index).image, planned.override
        if image is not None:
            payload["image"] = image
        if override.model_fields_set:
            payload["override"] = override.model_dump(mode="json", exclude_unset=True)
        return payload if resumes is None else {**payload, "resumes": resumes}

    def config(self) -> RunConfig:
        """Return the configuration, with the secrets from the variables of this process.

        Raises:
            UsageError: A variable is not set here.
        """
        try:
            return with_secrets(self.run)
        except UsageError as error:
            raise UsageError(
                f"{error}, and secrets are not sent to workers",
                hint="set the variable where the workers are started",
            ) from error

    def changed(self, task: Task) -> Task:
        """Return the task with the image and the other values of the job."""
        return overridden_task(task, self.image, self.override)


class TaskCache:
    """The tasks of payloads, each read once."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[Path, str], Task] = {}
        self._lock = asyncio.Lock()

    async def load(self, payload: RolloutPayload) -> Task:
        """Return the task of a payload, as its directory has it.

        Raises:
            TaskError: The task is missing, malformed, or cannot run here.
            UsageError: The task is not that of the plan.
        """
        key = payload.task, payload.digest
        async with self._lock:
            if key not in self._tasks:
                options = payload.run.adapter_options()
                task = await asyncio.to_thread(runnable_task, payload.task, options)
                if task.digest != payload.digest:
                    raise UsageError(
                        f"the task {task.id!r} here is not that of the job's plan",
                        hint="give every worker the same tasks, at the same path",
                        where=str(payload.task),
                    )
                self._tasks[key] = task
            return self._tasks[key]


def _portable(run: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose files have absolute paths."""
    agent, environment = run["agent"], run["environment"]
    if agent["name"].endswith(".toml"):
        agent["name"] = str(Path(agent["name"]).resolve())
    if environment["manifest"] is not None:
        environment["manifest"] = str(Path(environment["manifest"]).resolve())
    return run
