"""User Models, which answer the agent's questions."""

from .human import HumanUser
from .make import make_user
from .probabilities import answer_probabilities
from .scripted import AutoUser, ScriptedUser
from .simulated import SimulatedUser

__all__ = [
    "AutoUser",
    "HumanUser",
    "ScriptedUser",
    "SimulatedUser",
    "answer_probabilities",
    "make_user",
]
