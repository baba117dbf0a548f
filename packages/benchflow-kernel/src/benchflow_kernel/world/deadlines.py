"""The deadlines of the phases, extended to what the task allows."""

from benchflow_contracts import Deadlines, Task, TaskConfig

_GRADING_OVERHEAD_SEC = 300
"""Seconds to start and end the grading sandboxes, beside the tests that run in them."""


def extend_deadlines(task: Task, deadlines: Deadlines) -> Deadlines:
    """Return `deadlines` with room for what the task itself allows.

    The image's time is added to the start of the sandbox. A deadline for the turns or for
    grading that the config sets stays as it is.
    """
    environment = task.config.environment
    parts = [task.step(index).config for index in range(len(task.steps))] or [task.config]
    longer = {
        "execute": max(_agent_sec(part, deadlines) for part in parts),
        "verify": max(_grading_sec(part) for part in parts),
    }
    update = {
        name: seconds
        for name, seconds in longer.items()
        if name not in deadlines.model_fields_set and seconds > getattr(deadlines, name)
    }
    start = deadlines.start + (environment.image_timeout_sec or 0)
    return deadlines.model_copy(update={**update, "start": start})


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
