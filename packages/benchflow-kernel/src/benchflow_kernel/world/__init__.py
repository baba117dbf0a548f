"""One box with its environment and its agents, from the plan to the teardown."""

from .healthcheck import wait_healthy
from .live import LiveWorld
from .plan import Plan, make_plan
from .planes import Planes
from .sessions import CarriedSessions, LiveSessions
from .world import World

__all__ = [
    "CarriedSessions",
    "LiveSessions",
    "LiveWorld",
    "Plan",
    "Planes",
    "World",
    "make_plan",
    "wait_healthy",
]
