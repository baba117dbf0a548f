"""After a rollout: continue it from a checkpoint, or run it once more from its record."""

from .branch import BranchOutcome, Change, branch_rollout
from .past import PastRollout, leaf_of
from .repeat import RepeatReport, repeat_rollout

__all__ = [
    "BranchOutcome",
    "Change",
    "PastRollout",
    "RepeatReport",
    "branch_rollout",
    "leaf_of",
    "repeat_rollout",
]
