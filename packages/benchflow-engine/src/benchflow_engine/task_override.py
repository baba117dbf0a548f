"""Values that a job lays over a task: the table `[tasks."ID"]` of a job file."""

from collections.abc import Mapping
from typing import Annotated, Any

from benchflow_contracts import Model, Task
from benchflow_contracts.task import IMAGE_NAME
from pydantic import Field, StringConstraints

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Image = Annotated[str, StringConstraints(pattern=IMAGE_NAME)]


class TaskOverride(Model):
    """`[tasks."ID"]`: other values for one task."""

    image: Image | None = None
    """Image of the sandbox, before that of the variant."""
    env: Mapping[str, str] = {}
    """More variables of the sandbox. They are recorded."""
    agent_timeout_sec: Seconds | None = None
    """Instead of the task's `[agent] timeout_sec`, in every step."""
    verifier_timeout_sec: Seconds | None = None
    """Instead of the task's `[verifier] timeout_sec`, in every step."""


def overridden_task(task: Task, image: str | None, override: TaskOverride) -> Task:
    """Return a task with the image and the other values of a job; the same one without any.

    `Task.override` has these values, so that the record of a rollout has them, too.
    """
    if image is None and not override.model_fields_set:
        return task
    config = task.config
    environment = config.environment.model_copy(
        update={
            "env": {**config.environment.env, **override.env},
            "image": image or config.environment.image,
        }
    )
    limited = _limited(config, override)
    update: dict[str, Any] = {
        "config": config.model_copy(update={**limited, "environment": environment}),
        "steps": tuple(s.model_copy(update=_limited(s, override)) for s in task.steps),
    }
    if image is not None and task.own_parts is not None:
        update["own_parts"] = task.own_parts.model_copy(update={"recipe": None})
    values = override.model_dump(mode="json", exclude_unset=True)
    update["override"] = values if image is None else {**values, "image": image}
    return task.model_copy(update=update)


def _limited(part: Any, override: TaskOverride) -> dict[str, Any]:  # noqa: ANN401
    """Return the agent and the verifier of a task or a step, with other time limits."""
    limits = {"agent": override.agent_timeout_sec, "verifier": override.verifier_timeout_sec}
    return {
        name: getattr(part, name).model_copy(update={"timeout_sec": seconds})
        for name, seconds in limits.items()
        if seconds is not None
    }
