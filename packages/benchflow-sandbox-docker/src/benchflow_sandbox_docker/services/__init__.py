"""Containers beside a sandbox's own, in a network that they share."""

from .options import with_options
from .stack import Stack
from .sweep import sweep_services

__all__ = ["Stack", "sweep_services", "with_options"]
