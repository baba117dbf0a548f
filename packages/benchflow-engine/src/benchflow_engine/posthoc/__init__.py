"""After a rollout: resume it from a checkpoint, or run it again from its record."""

from .branch import BranchOutcome, Change, branch_rollout
from .call_group import branch_at_call
from .repeat import RepeatReport, repeat_rollout
from .run_inputs import RunInputs

__all__ = [
    "BranchOutcome",
    "Change",
    "RepeatReport",
    "RunInputs",
    "branch_at_call",
    "branch_rollout",
    "repeat_rollout",
]
