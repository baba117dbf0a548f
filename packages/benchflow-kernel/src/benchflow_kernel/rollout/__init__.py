"""The rollout's lifecycle."""

from .rollout import run_rollout

__all__ = ["run_rollout"]
