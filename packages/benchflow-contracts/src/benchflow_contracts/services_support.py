"""A sandbox that has services."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, runtime_checkable

from .sandbox import Sandbox, SandboxImage, SandboxSpec


@runtime_checkable
class SupportsServices(Protocol):
    """What a sandbox can do that has services."""

    async def service_exec(
        self,
        service: str,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run a command in a service, and return its exit code. Its output is dropped.

        Raises:
            SandboxTimeoutError: The time ran out; the command may go on.
            SandboxError: There is no such service, or it does not run.
        """
        ...

    async def service_download(
        self, service: str, remote: str, local: Path, *, max_bytes: int = 1 << 30
    ) -> None:
        """Copy a file or a directory tree out of a service, as `Sandbox.download` does."""
        ...

    async def service_logs(self, service: str, *, max_bytes: int = 1 << 20) -> bytes:
        """Return the last of what a service printed, both streams as they came."""
        ...

    def replace_main(
        self, image: SandboxImage, spec: SandboxSpec, *, labels: Mapping[str, str]
    ) -> AbstractAsyncContextManager[Sandbox]:
        """Make a sandbox that the services take for this one, for the length of the block.

        It is made of `image`, a snapshot, and of `spec`: no variable, user or model of this one
        is in it, only its networks, names and volumes. This one stands still meanwhile and is
        on no network; then it goes on, with its connections to services broken.

        Raises:
            SandboxUnsupportedError: `spec` reaches less than the services do.
            SandboxError: It could not be made, or this one could not be brought back.
        """
        ...
