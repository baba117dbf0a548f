"""ClawsBench: where its tasks are."""

from .place import root

__all__ = ["root"]
