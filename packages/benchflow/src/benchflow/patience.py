"""More time, or less, than a task gives."""

from benchflow_contracts import (
    ImageRecipe,
    ServiceSpec,
    Task,
    TaskAgent,
    TaskConfig,
    TaskEnvironment,
    TaskParts,
    TaskStep,
    TaskVerifier,
)


def with_patience(task: Task, factor: float) -> Task:
    """Return `task` with `factor` times the seconds of its agent, its tests and its images.

    Healthchecks, setup commands and collect hooks keep theirs. The digest stays.
    """
    if factor == 1:
        return task
    update = {
        "config": _config(task.config, factor),
        "own_parts": _parts(task.parts, factor),
        "steps": tuple(_step(step, factor) for step in task.steps),
    }
    return task.model_copy(update=update)


def _config(config: TaskConfig, factor: float) -> TaskConfig:
    update = {
        "agent": _agent(config.agent, factor),
        "environment": _environment(config.environment, factor),
        "verifier": _verifier(config.verifier, factor),
    }
    return config.model_copy(update=update)


def _step(step: TaskStep, factor: float) -> TaskStep:
    update = {
        "agent": _agent(step.agent, factor),
        "verifier": _verifier(step.verifier, factor),
        "parts": _parts(step.parts, factor),
    }
    return step.model_copy(update=update)


def _agent(agent: TaskAgent, factor: float) -> TaskAgent:
    return agent.model_copy(update={"timeout_sec": _times(agent.timeout_sec, factor)})


def _environment(environment: TaskEnvironment, factor: float) -> TaskEnvironment:
    seconds = _times(environment.image_timeout_sec, factor)
    return environment.model_copy(update={"image_timeout_sec": seconds})


def _verifier(verifier: TaskVerifier, factor: float) -> TaskVerifier:
    box = verifier.environment
    update = {
        "timeout_sec": verifier.timeout_sec * factor,
        "environment": None if box is None else _environment(box, factor),
    }
    return verifier.model_copy(update=update)


def _parts(parts: TaskParts, factor: float) -> TaskParts:
    update = {
        "recipe": _recipe(parts.recipe, factor),
        "grading_recipe": _recipe(parts.grading_recipe, factor),
        "services": tuple(_service(service, factor) for service in parts.services),
    }
    return parts.model_copy(update=update)


def _service(service: ServiceSpec, factor: float) -> ServiceSpec:
    return service.model_copy(update={"recipe": _recipe(service.recipe, factor)})


def _recipe(recipe: ImageRecipe | None, factor: float) -> ImageRecipe | None:
    if recipe is None:
        return None
    return recipe.model_copy(update={"timeout_sec": recipe.timeout_sec * factor})


def _times(seconds: float | None, factor: float) -> float | None:
    return None if seconds is None else seconds * factor
