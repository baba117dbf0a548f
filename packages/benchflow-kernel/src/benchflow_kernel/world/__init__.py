"""One sandbox with its environment and its agents, from the plan to the teardown."""

from .plan import SOLUTION_DIR, Plan, make_plan
from .planes import Planes
from .sessions import CarriedSessions, LiveSessions, LiveWorld
from .task_commands import run_setup, wait_healthy
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
