"""Sandboxes of Daytona: containers, and virtual machines."""

from .provider import DaytonaProvider, DaytonaVmProvider

__all__ = ["DaytonaProvider", "DaytonaVmProvider"]
