"""The `bench` command."""

from .entry import main

__all__ = ["main"]
