"""One box with its environment and its agents, from the plan to the teardown."""

from .healthcheck import wait_healthy
from .live import LiveWorld
from .plan import SOLUTION_DIR, Plan, make_plan
from .planes import Planes
from .sessions import CarriedSessions, LiveSessions
from .setup_commands import run_setup
from .world import World

__all__ = [
    "SOLUTION_DIR",
    "CarriedSessions",
    "LiveSessions",
    "LiveWorld",
    "Plan",
    "Planes",
    "World",
    "make_plan",
    "run_setup",
    "wait_healthy",
]
