"""Fork a world at a question: checkpoint, replay, and when it may be done."""

from .checkpoint import Checkpoint, check_invariant, take_checkpoint
from .policy import POLICY_NAME, REPLAY_REASON, can_fork, check_fidelity
from .replay import Exchange, Replay

__all__ = [
    "POLICY_NAME",
    "REPLAY_REASON",
    "Checkpoint",
    "Exchange",
    "Replay",
    "can_fork",
    "check_fidelity",
    "check_invariant",
    "take_checkpoint",
]
