"""A sandbox that has services."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from .identity import RolloutIdentity
from .sandbox import Sandbox, SandboxImage, SandboxSpec


@runtime_checkable
class SupportsServices(Protocol):
    """A sandbox that has services."""

    async def service_exec(
        self,
        service: str,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run a command in a service, and return its exit code. The output is discarded.

        Raises:
            SandboxTimeoutError: The time ran out; the command may continue.
            SandboxError: The service does not exist, or does not run.
        """
        ...

    async def service_download(
        self, service: str, remote: str, local: Path, *, max_bytes: int = 1 << 30
    ) -> None:
        """Copy a file or a directory tree out of a service, as `Sandbox.download` does."""
        ...

    async def service_logs(self, service: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the end of a service's output: both streams, in order of arrival."""
        ...

    def replace_main(
        self, image: SandboxImage, spec: SandboxSpec, *, identity: RolloutIdentity
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Put a new sandbox in the place of this one, beside its services, inside this block.

        The new sandbox is created from `image`, a snapshot, and from `spec`. It has this sandbox's
        networks, names and volumes, but not its variables, user or doors. Inside the block, this
        sandbox is paused and disconnected. Afterwards it continues, but its connections to
        services are broken.

        Raises:
            SandboxUnsupportedError: `spec` reaches less than the services do.
            SandboxError: The new sandbox did not start, or this one could not be resumed.
        """
        ...
