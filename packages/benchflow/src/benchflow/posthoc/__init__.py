"""After a rollout: go on from its checkpoints, repeat it, look after what it kept."""

from .branch import BranchOutcome, Change, branch_rollout
from .past import PastRollout, leaf_of
from .repeat import RepeatReport, repeat_rollout
from .shelf import KeptCheckpoint, collect, export_checkpoint, find_kept, kept_below

__all__ = [
    "BranchOutcome",
    "Change",
    "KeptCheckpoint",
    "PastRollout",
    "RepeatReport",
    "branch_rollout",
    "collect",
    "export_checkpoint",
    "find_kept",
    "kept_below",
    "leaf_of",
    "repeat_rollout",
]
