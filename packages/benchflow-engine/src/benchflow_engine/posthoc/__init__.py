"""After a rollout: resume it from a checkpoint, or run it again from its record."""

from .branch import BranchOutcome, Change, branch_rollout
from .repeat import RepeatReport, repeat_rollout
from .run_inputs import RunInputs

__all__ = [
    "BranchOutcome",
    "Change",
    "RepeatReport",
    "RunInputs",
    "branch_rollout",
    "repeat_rollout",
]
