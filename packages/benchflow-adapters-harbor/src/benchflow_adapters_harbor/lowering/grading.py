"""How a step is graded, in our words."""

import re
from pathlib import Path

from benchflow_contracts import CollectCommand, ImageRecipe, TaskVerifier

from benchflow_adapters_harbor.config import CollectHook
from benchflow_adapters_harbor.config.artifact import MAIN
from benchflow_adapters_harbor.task import HarborStep, HarborTask

from .box import NETWORKS, box, recipe, user_name
from .variables import variables

_USER = re.compile(r"^[ \t]*USER[ \t]+([A-Za-z0-9_.-]+)", re.IGNORECASE | re.MULTILINE)


def verifier(task: HarborTask, step: HarborStep) -> TaskVerifier:
    """Return the `[verifier]` of one step: in a twin, or in a container of its own."""
    plan = step.verifier
    own = plan.environment
    network = NETWORKS[plan.network.network_mode]
    return TaskVerifier(
        protocol="harbor",
        isolation="twin" if own is None else "hermetic",
        timeout_sec=plan.timeout_sec,
        **variables(plan.env),
        network=network,
        allowed_hosts=plan.network.allowed_hosts,
        user=user_name(plan.user) if own is not None else _shared_user(task, step),
        environment=None if own is None else box(own, plan.network, user=None),
        tests_in_image=plan.tests_in_image,
        collect=tuple(map(_collect, step.collect)),
    )


def grading_recipe(step: HarborStep) -> ImageRecipe | None:
    """Return what the image of a verifier's own container is made from, if anything."""
    plan = step.verifier
    if plan.environment is None or plan.directory is None:
        return None
    return recipe(plan.environment, plan.directory)


def _shared_user(task: HarborTask, step: HarborStep) -> str:
    """Return who runs the tests in the agent's container: by default the image's own user.

    Our boxes know one default user, the agent's. Where that is another than the image's,
    the image's has to be named: the last `USER` of its Dockerfile, else root.
    """
    if step.verifier.user is not None or step.user is None:
        return user_name(step.verifier.user)
    dockerfile = task.context / "Dockerfile"
    if task.config.environment.docker_image or not _plain(dockerfile):
        return "root"
    named = _USER.findall(dockerfile.read_text(encoding="utf-8", errors="replace"))
    return named[-1] if named else "root"


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _collect(hook: CollectHook) -> CollectCommand:
    return CollectCommand(
        command=hook.command,
        timeout_sec=hook.timeout_sec,
        user=user_name(hook.user),
        service="" if hook.service == MAIN else hook.service,
    )
