"""The Protocol of engines that take and restore live snapshots."""

from collections.abc import MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.process_table import ProcessTable

from benchflow_sandbox_local.running_box import LocalRunningBox
from benchflow_sandbox_local.store.layers import UndigestedImage

from .lazy import LazyRestorePolicy
from .processes import LiveState

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
        """Check the frozen sandbox for state that the engine cannot restore.

        Raises:
            LossError: A child would lose something.
        """
        ...

    async def write(self, processes: ProcessTable, *, stay_frozen: bool) -> UndigestedImage:
        """Dump the frozen sandbox, whose state does not change.

        Without `stay_frozen`, the sandbox may already run on return.

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
    def lazy_policy(self) -> LazyRestorePolicy | None:
        """The policy of lazy restores; None for an engine without them."""
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
        self, box: "Box", state: LiveState, *, frozen: bool, lazy: bool
    ) -> AbstractAsyncContextManager[RestoredBox]:
        """Restore a sandbox on new directories; with `frozen` it is frozen.

        The end of the block closes the streams that the caller has not removed from the result.

        Raises:
            SnapshotError: The engine failed. The launcher must still stop the sandbox.
        """
        ...
