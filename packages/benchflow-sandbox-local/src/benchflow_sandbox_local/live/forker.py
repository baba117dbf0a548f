"""Taking live snapshots and bringing boxes back from them."""

import asyncio
import os
import signal
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any

from benchflow_contracts.errors import HostError, SandboxError, SnapshotError
from benchflow_sandbox_native import pager_path

from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.machine import Machine, Place

from .carried import Wiring
from .dump import Dump, start
from .engine import LiveEngine
from .lazy import Filling, Laziness
from .state import LiveState

if TYPE_CHECKING:
    from benchflow_sandbox_local.cgroup.group import Group

_EAGAIN = 11


class Forker:
    """Runs the engine through one launcher, for `seconds` at most each time."""

    def __init__(self, launcher: Launcher, engine: LiveEngine, seconds: float) -> None:
        self._launcher = launcher
        self.laziness = Laziness()
        self._engine = engine
        self._seconds = seconds

    async def version(self) -> str:
        """Return what the engine says of itself.

        Raises:
            SandboxUnsupportedError: It does not start, or is too old.
        """
        return await asyncio.to_thread(self._engine.version)

    def dump(
        self,
        machine: Machine,
        place: Place,
        layer: str,
        group: "Group",
        mounts: tuple[tuple[str, str], ...],
    ) -> AbstractAsyncContextManager[Dump]:
        """Get ready to write down the processes of a box, which runs on for now.

        `layer` is what a copy of its files will be called.
        """
        request: dict[str, Any] = {
            "engine": self._engine.told,
            "family": place.family,
            "box": place.box,
            "size": place.size,
            "layer": layer,
            "pid": machine.pid,
            "freezer": group.freezer,
            "mounts": _mounts(mounts),
            "seconds": self._seconds,
        }
        return start(self._launcher, mounts, request)

    async def retire(self, box: str, layer: str) -> None:
        """Unmount the root of a dumped box; its upper directory becomes a layer."""
        await self._launcher.ask("retire", box=box, layer=layer)

    async def revive(
        self,
        state: LiveState,
        place: Place,
        group: "Group",
        wiring: Wiring,
        *,
        stopped: bool,
        lazy: bool = False,
    ) -> Machine:
        """Bring a box back on a root of its own; with `stopped` it is frozen on return.

        A `lazy` one that is large enough runs before all of its memory is there.

        Raises:
            SnapshotError: It did not come back. The launcher still has to `stop` it.
        """
        filling = Filling() if lazy and self.laziness.covers(state) else None
        request: dict[str, Any] = {
            "engine": self._engine.told,
            "family": place.family,
            "box": place.box,
            "size": place.size,
            "lowers": place.lowers,
            "join": group.join,
            "group": group.clone_into,
            "relay_port": state.port,
            "mounts": _mounts(state.mounts),
            "image": state.name,
            "image_bytes": state.bytes,
            "pipes": wiring.inodes,
            "stopped": stopped,
            "pager": None if filling is None else str(pager_path()),
        }
        with ExitStack() as undo:
            if filling is not None:
                undo.callback(filling.close)
            try:
                async with asyncio.timeout(self._seconds):
                    machine = await Machine.revive(self._launcher, request, wiring.fds, filling)
                    if stopped:
                        await _hold(group)
            except TimeoutError as error:
                why = f"the engine did not end in {self._seconds:.0f} s"
                raise SnapshotError(f"the box does not come back: {why}") from error
            except HostError:
                raise
            except SandboxError as error:
                raise SnapshotError(f"the box does not come back: {error}") from error
            undo.pop_all()
        wiring.connected()
        return machine

    async def forget(self, state: LiveState) -> None:
        """Delete what the engine wrote. Idempotent."""
        await self._launcher.ask("forget", image=state.name)

    async def identify(
        self, state: LiveState, family: str, layer: str, parent: str
    ) -> tuple[str, str]:
        """Return the digest of an image's files alone, and that of all of it.

        Raises:
            SnapshotError: The image is of an instant that no child can go on from.
        """
        request: dict[str, Any] = {"image": state.name, "library": self._engine.preload}
        request |= {"family": family, "layer": layer, "parent": parent}
        try:
            answer = await self._launcher.ask("identify", **request)
        except LauncherError as error:
            retryable = error.errno == _EAGAIN
            raise SnapshotError(
                f"the box cannot be forked: {error}", retryable=retryable
            ) from error
        return answer.message["files"], answer.message["digest"]


async def _hold(group: "Group") -> None:
    """Turn the stop that the engine left into a freeze."""
    await group.freeze()
    for pid in group.members():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _mounts(mounts: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in mounts]
