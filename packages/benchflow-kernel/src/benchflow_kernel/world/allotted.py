"""How long the phases may take, where the task says more than the defaults."""

from benchflow_contracts import Deadlines, Task, TaskConfig

_AROUND_GRADING_SEC = 300
"""For the grading boxes themselves, beside the tests that run in them."""


def allotted(task: Task, deadlines: Deadlines) -> Deadlines:
    """Return `deadlines` with room for what the task itself allows.

    The image's time comes on top of the start of the box. Deadlines for the turns and for
    grading that somebody chose hold as they are.
    """
    environment = task.config.environment
    parts = [task.step(index).config for index in range(len(task.steps))] or [task.config]
    longer = {
        "execute": max(_agent_sec(each, deadlines) for each in parts),
        "verify": max(_grading_sec(each) for each in parts),
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
    # Tests that come to no verdict are run once more, in an untouched sandbox.
    runs = 3 if verifier.may_grade_in_place else 2
    return runs * verifier.timeout_sec + collected + (image or 0) + _AROUND_GRADING_SEC
