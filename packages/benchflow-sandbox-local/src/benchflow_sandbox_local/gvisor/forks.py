"""Live snapshots of a box whose own kernel writes it down while the host looks on."""

from typing import TYPE_CHECKING, Protocol

from benchflow_contracts.sandbox import SandboxImage
from benchflow_sandbox_core.freezing import Freezer
from benchflow_sandbox_core.gate import Gate

from benchflow_sandbox_local.host_services import HostServices
from benchflow_sandbox_local.live.snapshots import SETTLE_SECONDS, Forks
from benchflow_sandbox_local.maker import During, Keeper

if TYPE_CHECKING:
    from .sandbox import GvisorSandbox


class GvisorForker(Keeper, Protocol):
    """What a gVisor box asks of the provider that made it."""

    async def checkpoint(self, sandbox: "GvisorSandbox") -> SandboxImage:
        """Take a live snapshot of a box that is held still."""
        ...


class GvisorForks(Forks):
    """Takes the live snapshots of one gVisor box, which stays as it is meanwhile."""

    def __init__(
        self,
        sandbox: "GvisorSandbox",
        keeper: GvisorForker,
        freezer: Freezer,
        work: Gate,
        served: HostServices,
    ) -> None:
        super().__init__(sandbox, keeper, freezer, work, served)
        self._gvisor = sandbox
        self._forker = keeper

    async def _take_after(self, while_frozen: During) -> SandboxImage:
        async with self._idle(0 if self._freezer.is_held else SETTLE_SECONDS):
            pass
        async with self._freezer.hold():
            await while_frozen()
            return await self._whole(self._take())

    async def _taken(self, *, held: bool) -> SandboxImage:  # noqa: ARG002 - it stays as it is
        async with self._freezer.hold():
            self._refuse_calls()
            return await self._forker.checkpoint(self._gvisor)
