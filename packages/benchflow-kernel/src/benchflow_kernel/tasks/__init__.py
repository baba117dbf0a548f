"""Load and check task directories."""

from .load import find_tasks, load_task

__all__ = ["find_tasks", "load_task"]
