"""Finished rollouts from disk to the directory of an exporter."""

from .finished import read_finished, read_finished_job
from .publish import publish
from .write import load_exporter, write_export

__all__ = ["load_exporter", "publish", "read_finished", "read_finished_job", "write_export"]
