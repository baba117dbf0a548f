"""Datasets: directories, git repositories and registries of tasks."""

from .directory import read_directory
from .registry import Registry, read_registry
from .repository import read_repository

__all__ = ["Registry", "read_directory", "read_registry", "read_repository"]
