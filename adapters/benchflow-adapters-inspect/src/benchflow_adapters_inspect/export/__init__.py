"""Finished rollouts as logs of Inspect, without Inspect's package."""

from .exporter import InspectExporter

__all__ = ["InspectExporter"]
