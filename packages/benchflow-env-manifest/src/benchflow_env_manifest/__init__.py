"""Stateful environments for BenchFlow, from one environment.toml manifest."""

from .environment import ManifestEnvironment, environment_of_task, manifest_environment
from .manifest import Manifest
from .reader import load_manifest, parse_manifest

__all__ = [
    "Manifest",
    "ManifestEnvironment",
    "environment_of_task",
    "load_manifest",
    "manifest_environment",
    "parse_manifest",
]
