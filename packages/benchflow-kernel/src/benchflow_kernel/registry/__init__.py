"""Providers by name, found through entry points."""

from .registry import GROUPS, Registry, load_path

__all__ = ["GROUPS", "Registry", "load_path"]
