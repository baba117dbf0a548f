"""Finding the engine of live snapshots on this machine."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import benchflow_sandbox_native as native
from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_sandbox_native import pager_path

from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.running_box import NamespaceRunningBox, Place

from .dump import DumpCall, start
from .lazy import LazyRestorePolicy, MemoryTransfer
from .processes import LiveState, PipeWiring

if TYPE_CHECKING:
    from benchflow_sandbox_local.cgroup.group import Group


PROGRAM = "BENCHFLOW_CRIU"
"""The environment variable that names the program; without it, `criu` on the PATH."""
OLDEST = (4, 2)
"""Before it, no socket of the internet family could be carried."""


@dataclass(frozen=True, slots=True)
class CriuProgram:
    """A CRIU program and the library that it needs in a process of its own."""

    program: str
    preload: str

    @classmethod
    def find(cls, *, rooted: bool) -> "CriuProgram":
        """Find the engine.

        Raises:
            SandboxUnsupportedError: There is none, or this user cannot use it.
        """
        if not rooted:
            raise SandboxUnsupportedError(
                "live snapshots need root", hint="run as root, or use level 'filesystem'"
            )
        program = os.environ.get(PROGRAM) or shutil.which("criu")
        if program is None or not os.access(program, os.X_OK):
            raise SandboxUnsupportedError(
                f"no CRIU program (looked for {program or 'criu'!r})",
                hint=f"install criu 4.2 or newer, or name the program in ${PROGRAM}; or let gVisor"
                " run the boxes: BENCHFLOW_LIVE_ENGINE=runsc",
            )
        return cls(program, _engine_library())

    def version(self) -> str:
        """Return what the program says of itself.

        Raises:
            SandboxUnsupportedError: It does not start, or is older than 4.2.
        """
        command = [self.program, "--version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnsupportedError(f"{self.program!r} does not start: {error}") from error
        found = re.search(r"Version: (\d+)\.(\d+)", done.stdout)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            raise SandboxUnsupportedError(
                f"{self.program!r} is too old: {done.stdout.strip()!r}",
                hint="install criu 4.2 or newer",
            )
        return f"{self.program}: {done.stdout.strip()}"

    @property
    def told(self) -> dict[str, str]:
        """What the launcher is told."""
        return {"program": self.program, "preload": self.preload}


def _engine_library() -> str:
    try:
        return str(native.engine_library())
    except native.NativeMissingError as error:
        raise SandboxUnsupportedError(str(error)) from error


_EAGAIN = 11


class CriuEngine:
    """Runs the engine through one launcher, for `seconds` at most each time."""

    def __init__(self, launcher: Launcher, engine: CriuProgram, seconds: float) -> None:
        self._launcher = launcher
        self.laziness = LazyRestorePolicy()
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
        machine: NamespaceRunningBox,
        place: Place,
        layer: str,
        group: "Group",
        mounts: tuple[tuple[str, str], ...],
    ) -> AbstractAsyncContextManager[DumpCall]:
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
        wiring: PipeWiring,
        *,
        stopped: bool,
        lazy: bool = False,
    ) -> NamespaceRunningBox:
        """Bring a box back on a root of its own; with `stopped` it is frozen on return.

        A `lazy` one that is large enough runs before all of its memory is there.

        Raises:
            SnapshotError: It did not come back. The launcher still has to `stop` it.
        """
        filling = MemoryTransfer() if lazy and self.laziness.covers(state) else None
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
                    machine = await NamespaceRunningBox.revive(
                        self._launcher, request, wiring.fds, filling
                    )
                    if stopped:
                        await _freeze_stopped(group)
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


async def _freeze_stopped(group: "Group") -> None:
    """Turn the stop that the engine left into a freeze."""
    await group.freeze()
    for pid in group.members():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _mounts(mounts: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in mounts]
