"""Caps on what a sandbox or a service may use."""

from typing import Literal

from pydantic import Field

from ._model import Model

ResourceKind = Literal["memory", "pids", "cpu", "disk", "output"]


class ResourceLimits(Model):
    """Caps on one sandbox. `None` means that the provider's default holds."""

    memory_mb: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=512, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    disk_mb: int | None = Field(default=2048, gt=0)
    output_bytes: int = Field(default=10 * 1024 * 1024, gt=0)
    """Bytes kept of each of stdout and stderr per `exec`; the rest is counted."""
