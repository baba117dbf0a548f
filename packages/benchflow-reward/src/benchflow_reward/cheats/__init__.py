"""The cheats that tasks are tried with: `bench tasks check --cheat`."""

from .cheat import Cheat, cheats

__all__ = ["Cheat", "cheats"]
