"""The deadlines of the phases, extended to what the task allows."""

from benchflow_contracts import (
    Task,
    TaskConfig,
)

from benchflow_kernel.config import Deadlines, RolloutConfig

from .settings import Origins

_GRADING_OVERHEAD_SEC = 300
"""Seconds to start and end the grading sandboxes, beside the tests that run in them."""


def effective_deadlines(task: Task, config: RolloutConfig, origins: Origins) -> Deadlines:
    """Return the config's deadlines with room for what the effective task allows.

    The image's time is added to the start of the sandbox. A deadline for the turns or for
    grading that the config sets stays as it is.
    """
    deadlines, environment = config.deadlines, task.config.environment
    parts = [task.step(index).config for index in range(len(task.steps))] or [task.config]
    longer = {
        "execute": max(_agent_sec(part, deadlines) for part in parts),
        "verify": max(_grading_sec(part) for part in parts),
    }
    update: dict[str, float] = {}
    for name, table in (("execute", "agent"), ("verify", "verifier")):
        if name not in deadlines.model_fields_set and longer[name] > getattr(deadlines, name):
            update[name] = longer[name]
            key = f"steps.0.{table}.timeout_sec" if task.steps else f"{table}.timeout_sec"
            origins.note(f"deadlines.{name}", origins.find(key))
    if environment.image_timeout_sec is not None:
        update["start"] = deadlines.start + environment.image_timeout_sec
        origins.note("deadlines.start", origins.find("environment.image_timeout_sec"))
    return deadlines.model_copy(update=update)


def _agent_sec(config: TaskConfig, deadlines: Deadlines) -> float:
    limit = config.agent.timeout_sec
    return deadlines.execute if limit is None else limit * config.agent.max_turns


def _grading_sec(config: TaskConfig) -> float:
    verifier = config.verifier
    image = verifier.environment.image_timeout_sec if verifier.environment else None
    collected = sum(command.timeout_sec for command in verifier.collect)
    # Tests without a verdict run once more, in an untouched sandbox.
    runs = 3 if verifier.may_grade_in_place else 2
    return runs * verifier.timeout_sec + collected + (image or 0) + _GRADING_OVERHEAD_SEC
