"""Sandboxes in containers of a Docker engine on this host."""

from .provider import DockerProvider

__all__ = ["DockerProvider"]
