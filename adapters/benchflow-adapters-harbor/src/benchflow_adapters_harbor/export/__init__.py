"""Rollouts as Harbor's jobs and trials."""

from .exporter import HarborExporter

__all__ = ["HarborExporter"]
