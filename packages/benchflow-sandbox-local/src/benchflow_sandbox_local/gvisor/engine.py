"""runsc, the engine of live snapshots for gVisor sandboxes."""

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.fifo.streams import FifoStreams
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.spec import door_ports

from benchflow_sandbox_local.launcher import Launcher, LauncherError
from benchflow_sandbox_local.live.engine import RestoredBox
from benchflow_sandbox_local.live.processes import (
    ImageProcess,
    LiveState,
    park,
    unpark,
)
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.running_box import Place, box_request
from benchflow_sandbox_local.store.layers import UndigestedImage, acquire_layers

from .running_box import GvisorRunningBox

if TYPE_CHECKING:
    from benchflow_sandbox_local.box import Box
    from benchflow_sandbox_local.cgroup.group import Group

PROGRAM = "BENCHFLOW_RUNSC"
"""The environment variable that names the program; without it, `runsc` on the PATH."""


@dataclass(frozen=True, slots=True)
class RunscProgram:
    """A `runsc` program."""

    program: str

    @classmethod
    def find(cls, *, rooted: bool) -> "RunscProgram":
        """Find the program.

        Raises:
            SandboxUnsupportedError: The program is missing, or this user cannot use it.
        """
        if not rooted:
            raise SandboxUnsupportedError("a gVisor sandbox needs root", hint="run as root")
        program = os.environ.get(PROGRAM) or shutil.which("runsc")
        if program is None or not os.access(program, os.X_OK):
            raise SandboxUnsupportedError(
                f"no gVisor program (looked for {program or 'runsc'!r})",
                hint=f"install runsc, or name the program in ${PROGRAM}",
            )
        return cls(os.path.realpath(program))

    def version(self) -> str:
        """Return the program and its version.

        Raises:
            SandboxUnsupportedError: The program does not start.
        """
        command = [self.program, "--version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnsupportedError(f"{self.program!r} does not start: {error}") from error
        return f"{self.program}: {' '.join(done.stdout.split())}"


class RunscEngine:
    """Starts, dumps and restores gVisor sandboxes. A dump may take `seconds`.

    A dump leaves the sandbox running and copies its upper layer, so a failed fork changes nothing.
    """

    name = "runsc"
    lost_in_fork: frozenset[str] = frozenset({"deleted file", "file identity"})
    lazy_policy = None

    def __init__(self, launcher: Launcher, program: RunscProgram, seconds: float) -> None:
        self._launcher = launcher
        self._program = program
        self._seconds = seconds

    async def probe(self) -> str:
        """Return the program and its version."""
        return await asyncio.to_thread(self._program.version)

    async def start(
        self, place: Place, spec: SandboxSpec, base: Base, group: "Group"
    ) -> GvisorRunningBox:
        """Start a sandbox; raise `SandboxError` when it did not start."""
        request = self._request(place, spec, base, group)
        return await GvisorRunningBox.start(self._launcher, request, spec)

    def _request(
        self, place: Place, spec: SandboxSpec, base: Base, group: "Group", **more: object
    ) -> dict[str, Any]:
        request = box_request(place, spec, base, group)
        return {**request, "program": self._program.program, "image": None, **more}

    @asynccontextmanager
    async def dump(self, box: "Box", processes: ProcessTable) -> AsyncGenerator["PendingRunscDump"]:
        """Return at once: the sandbox's own kernel dumps it, so no engine has to start."""
        del processes
        yield PendingRunscDump(self, box)

    @asynccontextmanager
    async def restore(
        self, box: "Box", state: LiveState, *, frozen: bool, lazy: bool
    ) -> AsyncGenerator[RestoredBox]:
        """Start a sandbox from an image of its processes. See `LiveEngine.restore`."""
        del frozen, lazy  # a dump leaves the sandbox running, and runsc reads all memory at once
        mounts = [{"source": source, "target": target} for source, target in state.mounts]
        place, base = box.new_place(), box.stack.base
        more: dict[str, object] = {
            "image": state.name,
            "mounts": mounts,
            "door_ports": state.door_ports,
        }
        request = self._request(place, box.spec, base, box.group, **more)
        try:
            running = await GvisorRunningBox.start(
                self._launcher, request, box.spec, state.processes
            )
        except HostError:
            raise
        except SandboxError as error:
            raise SnapshotError(f"the sandbox cannot be restored: {error}") from error
        yield RestoredBox(running, running.restored_streams)

    async def write_state(
        self, box: "Box", running: GvisorRunningBox, processes: list[SandboxProcess]
    ) -> LiveState:
        """Dump the processes of a paused sandbox, whose pipes are parked."""
        await running.ask("checkpoint", self._seconds)
        name = f"i{secrets.token_hex(4)}"
        answer = await self._launcher.ask("take_image", box=box.stack.box, image=name)
        mounts = tuple((bundle.source, bundle.target) for bundle in box.spec.bundles)
        ports = tuple(door_ports(box.spec))
        image_processes = tuple(map(_image_process, processes))
        return LiveState(name, answer.message["bytes"], image_processes, mounts, ports)


class PendingRunscDump:
    """A dump of a gVisor sandbox that has not started."""

    def __init__(self, engine: RunscEngine, box: "Box") -> None:
        self._engine = engine
        self._box = box

    async def inspect(self) -> None:
        """Return at once: runsc itself refuses state that it cannot dump."""

    async def write(self, processes: ProcessTable, *, stay_frozen: bool) -> UndigestedImage:
        """Dump the paused sandbox and copy its files.

        Raises:
            SnapshotError: The dump failed. The sandbox continues.
        """
        del stay_frozen  # the sandbox is paused before and after
        open_processes, name = processes.all, self._box.name
        try:
            await park(open_processes)
            return await self._write(open_processes)
        except HostError:
            raise
        except (LauncherError, TimeoutError) as error:
            deleted = "deleted" in str(error)
            raise SnapshotError(
                f"cannot snapshot {name!r}: {error}",
                hint="close the files that were deleted" if deleted else None,
                retryable=deleted,
            ) from error
        finally:
            unpark(open_processes)

    async def _write(self, processes: list[SandboxProcess]) -> UndigestedImage:
        box, running = self._box, self._box.running
        assert isinstance(running, GvisorRunningBox)
        state = await self._engine.write_state(box, running, processes)
        try:
            async with AsyncExitStack() as freeze, box.sealed_layers(freeze) as layers:
                acquire_layers(layers)
        except BaseException:
            await box.host.snapshots.delete_state(state)
            raise
        return UndigestedImage(box.stack.base, layers, state, box.stack.mark)


def _image_process(process: SandboxProcess) -> ImageProcess:
    streams = process.streams
    assert isinstance(streams, FifoStreams)
    stdin, stdout, stderr = (None if end.closed else streams.number for end in streams.ends)
    out, err = streams.stdout.buffered, streams.stderr.buffered
    return ImageProcess(process.id, process.pid, (stdin, stdout, stderr), out, err)
