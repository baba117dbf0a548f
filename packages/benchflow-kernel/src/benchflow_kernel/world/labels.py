"""The labels of a rollout's sandboxes."""

import math
import time

from benchflow_contracts import DEADLINE

from benchflow_kernel.config import Deadlines
from benchflow_kernel.resolve import Plan


def labels_of(plan: Plan, node: str) -> dict[str, str]:
    """Return the labels of a sandbox that is created now for `node`.

    The deadline is the sum of all phases' deadlines. Waiting for a question or for the
    children of a fork is not included, so a sandbox past its deadline may still be in use.
    """
    return {
        **plan.config.labels,
        "benchflow.rollout": plan.rollout_id,
        "benchflow.task": plan.task.id,
        "benchflow.node": node,
        DEADLINE: str(math.ceil(time.time() + _total_sec(plan.config.deadlines))),
    }


def _total_sec(deadlines: Deadlines) -> float:
    return sum(float(seconds) for seconds in deadlines.model_dump().values())
