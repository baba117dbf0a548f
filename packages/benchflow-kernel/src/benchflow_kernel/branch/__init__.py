"""Fork a world: policies, budgets, fidelity, checkpoints and replay."""

from .budget_tracker import BranchBudgetTracker
from .capture import check_child, take_checkpoint
from .checkpoint import Checkpoint
from .checkpoint_refs import CheckpointRefs
from .fidelity import Captured, FidelitySelector
from .policy import children_of, forks_at_ask, forks_at_turn, labels_of, needs_base_checkpoint
from .replay import Exchange, Replay, ReplayLog
from .seed import seed_of
from .slots import MachineSlots

__all__ = [
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
    "forks_at_turn",
    "labels_of",
    "needs_base_checkpoint",
    "seed_of",
    "take_checkpoint",
]
