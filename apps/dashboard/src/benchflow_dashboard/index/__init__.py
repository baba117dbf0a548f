"""The index: what lists and counters need, so that no request parses a log."""

from .index import Index, RolloutEntry

__all__ = ["Index", "RolloutEntry"]
