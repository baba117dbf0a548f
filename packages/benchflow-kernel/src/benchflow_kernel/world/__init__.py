"""One box with its environment and its agents, from the plan to the teardown."""

from .plan import Plan, make_plan
from .planes import Planes
from .sessions import CarriedSessions
from .world import World

__all__ = ["CarriedSessions", "Plan", "Planes", "World", "make_plan"]
