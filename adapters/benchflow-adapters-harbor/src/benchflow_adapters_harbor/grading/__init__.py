"""Harbor's grading protocol: how its tests are placed, run and read."""

from .protocol import HARBOR

__all__ = ["HARBOR"]
