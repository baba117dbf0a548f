"""Scenes lowered to per-turn configuration."""

from .lower import LoweredTurn, lower_scenes

__all__ = ["LoweredTurn", "lower_scenes"]
