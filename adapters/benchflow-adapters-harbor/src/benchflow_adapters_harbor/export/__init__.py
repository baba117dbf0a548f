"""Export rollouts as jobs and trials of Harbor."""

from .exporter import HarborExporter

__all__ = ["HarborExporter"]
