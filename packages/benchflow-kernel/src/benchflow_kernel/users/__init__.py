"""User Models, which answer the agent's questions."""

from .human import HumanUser
from .make import make_user
from .scripted import AutoUser, ScriptedUser
from .simulated import SimulatedUser

__all__ = ["AutoUser", "HumanUser", "ScriptedUser", "SimulatedUser", "make_user"]
