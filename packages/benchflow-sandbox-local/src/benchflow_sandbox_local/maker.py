"""What makes local sandboxes, as they see it."""

import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from benchflow_contracts.sandbox import SandboxImage

from benchflow_sandbox_local.live.dump import DumpCall, SocketMakers
from benchflow_sandbox_local.store.layers import UndigestedImage

from .change_tracker import ChangeTracker
from .running_box import LocalRunningBox

if TYPE_CHECKING:
    from .sandbox import LocalSandbox

During = Callable[[], Awaitable[None]]
"""What is done while nothing inside runs."""


class Keeper(Protocol):
    """What a sandbox asks of the provider that made it."""

    async def socket_in(self, netns: int) -> socket.socket:
        """Return a socket made in a network namespace."""
        ...

    def check(self, image: SandboxImage) -> None:
        """Raise `SnapshotError` when `image` cannot be restored."""
        ...

    def require_live(self) -> None:
        """Raise `SandboxUnsupportedError` when nothing here takes live snapshots."""
        ...

    def forking(self, sandbox: "LocalSandbox") -> AbstractAsyncContextManager[DumpCall]:
        """Get ready to `fork` a sandbox that still runs."""
        ...

    async def inspect(self, sandbox: "LocalSandbox") -> SocketMakers:
        """Return who made the unix sockets of a frozen sandbox.

        Raises:
            LossError: A child would lack something.
        """
        ...

    async def fork(
        self, sandbox: "LocalSandbox", dump: DumpCall, makers: SocketMakers, *, held: bool
    ) -> UndigestedImage:
        """Write the frozen sandbox down; with `held` it stays frozen."""
        ...

    async def publish(self, forked: UndigestedImage) -> SandboxImage:
        """Make an image of what `fork` returned."""
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot; free what nothing needs any more."""
        ...

    async def seal(self, sandbox: "LocalSandbox", while_frozen: During | None) -> SandboxImage:
        """Copy the sandbox's upper layer away while it is frozen."""
        ...

    async def restart(self, sandbox: "LocalSandbox", image: SandboxImage) -> LocalRunningBox:
        """Kill the box and start it again from `image`."""
        ...

    def written(self, sandbox: "LocalSandbox") -> ChangeTracker:
        """Return what compares the sandbox's files, while it stands still, with its mark.

        Raises:
            SandboxUnsupportedError: What it writes is nowhere apart.
        """
        ...

    async def remove(self, sandbox: "LocalSandbox") -> None:
        """Kill the box and remove everything of it."""
        ...
