"""Images that are built although the task names one."""

from benchflow_adapters_harbor.config import HarborEnvironment
from benchflow_adapters_harbor.task import HarborStep, HarborTask


def built_anew(task: HarborTask) -> HarborTask:
    """Return `task` without the names of images for which it has a Dockerfile.

    As `--force-build` of Harbor 0.24 does it. An image without a Dockerfile stays.
    """
    config = task.config
    if task.dockerfile:
        config = config.model_copy(update={"environment": _unnamed(config.environment)})
    steps = tuple(_step(step) for step in task.steps)
    return task.model_copy(update={"config": config, "steps": steps})


def _step(step: HarborStep) -> HarborStep:
    plan = step.verifier
    if plan.environment is None or plan.directory is None:
        return step
    if not (plan.directory / "Dockerfile").is_file():
        return step
    verifier = plan.model_copy(update={"environment": _unnamed(plan.environment)})
    return step.model_copy(update={"verifier": verifier})


def _unnamed(environment: HarborEnvironment) -> HarborEnvironment:
    return environment.model_copy(update={"docker_image": None})
