"""Task directories, read and checked."""

from .load import find_tasks, load_task

__all__ = ["find_tasks", "load_task"]
