"""Rollouts as pages read them: one fold for each state of a log."""

from .cache import LoadedRollout, RolloutCache

__all__ = ["LoadedRollout", "RolloutCache"]
