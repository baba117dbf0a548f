"""Fork a world: policies, budgets, the fidelity ladder, checkpoints and replay."""

from .checkpoint import Checkpoint
from .demand import check_captures, check_fidelity, check_turns
from .ladder import Ladder, Rung
from .policy import children_of, forks_at_ask, forks_at_turn, labels_of, needs_floor
from .purse import Purse
from .replay import Exchange, Replay
from .seed import seed_of
from .shelf import Shelf
from .slots import MachineSlots
from .take import check_child, take_checkpoint

__all__ = [
    "Checkpoint",
    "Exchange",
    "Ladder",
    "MachineSlots",
    "Purse",
    "Replay",
    "Rung",
    "Shelf",
    "check_captures",
    "check_child",
    "check_fidelity",
    "check_turns",
    "children_of",
    "forks_at_ask",
    "forks_at_turn",
    "labels_of",
    "needs_floor",
    "seed_of",
    "take_checkpoint",
]
