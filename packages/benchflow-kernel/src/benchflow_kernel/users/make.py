"""Create a User Model from the task's `[user]` table."""

from typing import Literal

from benchflow_contracts import Endpoint, TaskUser, UsageError, UserModel

from .human import HumanUser
from .scripted import AutoUser, ScriptedUser
from .simulated import SimulatedUser


def make_user(
    task_user: TaskUser,
    *,
    endpoint: Endpoint | None = None,
    model: str | None = None,
    mode: Literal["scripted", "simulated", "auto", "human"] | None = None,
    seed: int | None = None,
) -> UserModel:
    """Return the task's User Model; `mode` overrides the task's mode.

    Every mode but `human` allows permission requests by default. Only `simulated`
    uses `endpoint`, `model` and `seed`.

    Raises:
        UsageError: The mode is `simulated`, and the endpoint or the model is missing.
        TaskError: A scripted pattern is not a regular expression.
    """
    match mode or task_user.mode:
        case "scripted":
            return ScriptedUser(task_user.answers, task_user.nudges)
        case "auto":
            return AutoUser(task_user.nudges)
        case "human":
            return HumanUser()
        case "simulated":
            if endpoint is None or model is None:
                raise UsageError(
                    "a simulated user needs a model endpoint",
                    hint="give the user an endpoint and a model, or choose the user mode 'auto'",
                )
            return SimulatedUser(
                endpoint, model, persona=task_user.persona, nudges=task_user.nudges, seed=seed
            )
