"""Containers beside a sandbox's own, in a network that they share."""

from .stack import Stack
from .sweep import sweep_services

__all__ = ["Stack", "sweep_services"]
