"""What an engine of live snapshots does."""

from collections.abc import MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchflow_sandbox_core.pipes import Streams

from benchflow_sandbox_local.running_box import LocalRunningBox
from benchflow_sandbox_local.store.layers import UndigestedImage

from .lazy import LazyRestorePolicy
from .processes import LiveState, ProcessTable

if TYPE_CHECKING:
    from benchflow_sandbox_local.box import Box


@dataclass(frozen=True, slots=True)
class RestoredBox:
    """A sandbox that an engine has restored, and the pipes of its processes by their id."""

    running: LocalRunningBox
    streams: MutableMapping[str, Streams]


class PendingDump(Protocol):
    """An engine that has started and waits until its sandbox is frozen."""

    async def inspect(self) -> None:
        """Look for what a child of the frozen sandbox would lose.

        Raises:
            LossError: A child would lose something.
        """
        ...

    async def write(self, processes: ProcessTable, *, held: bool) -> UndigestedImage:
        """Dump the frozen sandbox, which is unchanged afterwards. With `held` it stays frozen.

        Raises:
            SnapshotError: The dump failed. The sandbox continues, or is closed when it cannot.
        """
        ...


class LiveEngine(Protocol):
    """Dumps running sandboxes and restores them."""

    @property
    def name(self) -> str:
        """The name that `SandboxCapabilities.live_engine` reports."""
        ...

    @property
    def lost_in_fork(self) -> frozenset[str]:
        """Parts of the fork probe that the engine refuses to dump."""
        ...

    @property
    def laziness(self) -> LazyRestorePolicy | None:
        """Which children run before all of their memory is there; None for an engine without."""
        ...

    async def probe(self) -> str:
        """Return the program and its version.

        Raises:
            SandboxUnsupportedError: The program does not start, or is too old.
        """
        ...

    def dump(self, box: "Box", processes: ProcessTable) -> AbstractAsyncContextManager[PendingDump]:
        """Start the engine while the sandbox still runs, so that it is frozen for less time."""
        ...

    def restore(
        self, box: "Box", state: LiveState, *, held: bool, lazy: bool
    ) -> AbstractAsyncContextManager[RestoredBox]:
        """Restore a sandbox on new directories; with `held` it is frozen.

        Streams that nobody has taken are closed at the end of the block.

        Raises:
            SnapshotError: The engine failed. The launcher still has to stop the sandbox.
        """
        ...
