"""Stateful environments for BenchFlow, from one environment.toml manifest."""

from .manifest import Manifest
from .reader import load_manifest, parse_manifest

__all__ = ["Manifest", "load_manifest", "parse_manifest"]
