"""Our tasks as environments of the Open Reward Standard."""

from .app import DefaultEnvironment, OrsServerSettings, create_app, serve
from .catalogue import EnvironmentCatalogue, ServedEnvironment

__all__ = [
    "DefaultEnvironment",
    "EnvironmentCatalogue",
    "OrsServerSettings",
    "ServedEnvironment",
    "create_app",
    "serve",
]
