"""Fork a world: policies, budgets, fidelity, checkpoints and replay."""

from .capture import RANK, Captured, FidelitySelector, check_child, take_checkpoint
from .checkpoint import Checkpoint, CheckpointRefs
from .fork_limits import BranchBudgetTracker, MachineSlots
from .policy import (
    children_of,
    forks_at_ask,
    forks_at_call,
    forks_at_calls,
    forks_at_turn,
    labels_of,
    needs_base_checkpoint,
)
from .replay import Exchange, Replay, ReplayLog

__all__ = [
    "RANK",
    "BranchBudgetTracker",
    "Captured",
    "Checkpoint",
    "CheckpointRefs",
    "Exchange",
    "FidelitySelector",
    "MachineSlots",
    "Replay",
    "ReplayLog",
    "check_child",
    "children_of",
    "forks_at_ask",
    "forks_at_call",
    "forks_at_calls",
    "forks_at_turn",
    "labels_of",
    "needs_base_checkpoint",
    "take_checkpoint",
]
