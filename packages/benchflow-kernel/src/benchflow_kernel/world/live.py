"""What runs on in a live image."""

from collections.abc import Mapping
from dataclasses import dataclass

from .sessions import LiveSessions


@dataclass(frozen=True, slots=True)
class LiveWorld:
    """The host's half of a world whose processes a live image holds."""

    services: Mapping[str, str]
    """Process ids of the environment's services, by name."""
    sessions: LiveSessions
    strangers: tuple[str, ...] = ()
    """Process ids of agents that nobody goes on with: they are ended first."""
