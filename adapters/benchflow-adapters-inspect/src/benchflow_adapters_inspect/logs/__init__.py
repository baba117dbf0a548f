"""Logs of Inspect as finished rollouts, read without Inspect's package."""

from .imported import import_log
from .log_file import LogFile

__all__ = ["LogFile", "import_log"]
