"""One sandbox with its environment and its agents, from the start to the teardown."""

from .liveness import watch_sandbox
from .sessions import (
    CarriedSessions,
    LiveSessions,
    LiveWorld,
    SessionHandlers,
    call_forks_of,
)
from .task_processes import run_setup, wait_healthy
from .world import World

__all__ = [
    "CarriedSessions",
    "LiveSessions",
    "LiveWorld",
    "SessionHandlers",
    "World",
    "call_forks_of",
    "run_setup",
    "wait_healthy",
    "watch_sandbox",
]
