"""The `bench` command."""

from .main import main

__all__ = ["main"]
