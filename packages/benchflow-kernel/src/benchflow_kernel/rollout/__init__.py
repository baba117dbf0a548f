"""The rollout's lifecycle, and going on from what it kept."""

from .kept import CHECKPOINT_FILE, CheckpointManifest, kept_checkpoints, read_kept
from .rollout import continue_from, run_rollout

__all__ = [
    "CHECKPOINT_FILE",
    "CheckpointManifest",
    "continue_from",
    "kept_checkpoints",
    "read_kept",
    "run_rollout",
]
