"""Resource limits of a sandbox or a service."""

from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from ._model import Model

ResourceKind = Literal["memory", "pids", "cpu", "disk", "output"]


class ResourceLimits(Model):
    """Limits of one sandbox. `None` is the provider's default."""

    memory_mb: int | None = Field(default=None, gt=0)
    pids: int | None = Field(default=512, gt=0)
    cpus: float | None = Field(default=None, gt=0)
    disk_mb: int | None = Field(default=2048, gt=0)
    output_bytes: int = Field(default=10 * 1024 * 1024, gt=0)
    """Bytes of stdout, and of stderr, that one `exec` returns. Further bytes are only counted."""


@runtime_checkable
class HasMemoryTotal(Protocol):
    """A provider whose sandboxes may run on another machine than this process."""

    async def memory_total_mb(self) -> int:
        """Return the memory of the machine of the sandboxes in MB, 0 if it is not known."""
        ...


@runtime_checkable
class HasCosts(Protocol):
    """A provider whose sandboxes cost money."""

    def cost_usd(self, rollout: str) -> float | None:
        """Return the cost in US dollars of a rollout's sandboxes up to now.

        `None`: the prices are not known. Sandboxes that run count with their time until now.
        """
        ...
