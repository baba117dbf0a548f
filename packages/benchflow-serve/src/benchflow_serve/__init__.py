"""The rollout service: rollouts for a trainer over HTTP."""

from .app import create_app
from .core import RolloutService
from .server import ServerAddress, serve
from .settings import ServeSettings

__all__ = ["RolloutService", "ServeSettings", "ServerAddress", "create_app", "serve"]
