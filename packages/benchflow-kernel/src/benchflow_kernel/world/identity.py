"""The identity of a rollout's sandboxes."""

import math
import time

from benchflow_contracts import RolloutIdentity

from benchflow_kernel.config import Deadlines
from benchflow_kernel.resolve import Plan


def identity_of(plan: Plan, node: str) -> RolloutIdentity:
    """Return the identity of a sandbox that is created now for `node`.

    The deadline is the sum of all phases' deadlines. Waiting for a question or for the
    children of a fork is not included, so a sandbox past its deadline may still be in use.
    """
    return plan.identity.model_copy(
        update={
            "rollout": plan.rollout_id,
            "task": plan.task.id,
            "node": node,
            "deadline": math.ceil(time.time() + _total_sec(plan.config.deadlines)),
        }
    )


def _total_sec(deadlines: Deadlines) -> float:
    return sum(float(seconds) for _, seconds in deadlines)
