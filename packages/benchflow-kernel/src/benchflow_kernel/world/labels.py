"""What every sandbox of a rollout says of itself, to whoever finds it."""

import math
import time

from benchflow_contracts import DEADLINE, Deadlines

from .plan import Plan


def labels_of(plan: Plan, node: str) -> dict[str, str]:
    """Return the labels of a sandbox that is made now for `node`.

    The deadline is when all phases together would have run out of time. A turn that waits for
    a question, or for the children of a fork, is not counted in them, so that a sandbox past
    its deadline is odd, and no more than that.
    """
    return {
        **plan.config.labels,
        "benchflow.rollout": plan.rollout_id,
        "benchflow.task": plan.task.id,
        "benchflow.node": node,
        DEADLINE: str(math.ceil(time.time() + _all(plan.config.deadlines))),
    }


def _all(deadlines: Deadlines) -> float:
    return sum(float(seconds) for seconds in deadlines.model_dump().values())
