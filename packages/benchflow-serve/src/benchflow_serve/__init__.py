"""The rollout service: rollouts for a trainer over HTTP."""

from .app import create_app
from .core import RolloutService
from .server import ServerAddress, serve
from .settings import ServeSettings
from .task_process import RunningTaskServer, TaskServerAddress, serve_tasks

__all__ = [
    "RolloutService",
    "RunningTaskServer",
    "ServeSettings",
    "ServerAddress",
    "TaskServerAddress",
    "create_app",
    "serve",
    "serve_tasks",
]
