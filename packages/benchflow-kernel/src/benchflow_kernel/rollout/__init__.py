"""The lifecycle of a rollout, and resuming from its saved checkpoints."""

from .checkpoint_manifest import (
    CHECKPOINT_FILE,
    CheckpointManifest,
    read_manifest,
    saved_checkpoints,
)
from .preflight import check_capabilities, check_turns, needs_capabilities
from .record import write_tree
from .rollout import continue_from, run_rollout

__all__ = [
    "CHECKPOINT_FILE",
    "CheckpointManifest",
    "check_capabilities",
    "check_turns",
    "continue_from",
    "needs_capabilities",
    "read_manifest",
    "run_rollout",
    "saved_checkpoints",
    "write_tree",
]
