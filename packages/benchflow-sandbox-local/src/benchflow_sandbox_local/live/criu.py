"""CRIU, an engine of live snapshots for processes of the host's kernel."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import benchflow_sandbox_native as native
from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.spec import door_ports
from benchflow_sandbox_native import pager_path

from benchflow_sandbox_local.launcher import Launcher
from benchflow_sandbox_local.launcher_process.layers.inode_pins import MOST_BYTES
from benchflow_sandbox_local.running_box import NamespaceRunningBox
from benchflow_sandbox_local.stopped_processes import refuse_stopped
from benchflow_sandbox_local.store.layers import Layer, UndigestedImage, acquire_layers

from .dump import DumpCall, SocketMakers, inspect, start
from .engine import RestoredBox
from .lazy import LazyRestorePolicy, MemoryTransfer
from .processes import LiveState, PipeWiring, ProcessTable, refuse_too_many, unpark

if TYPE_CHECKING:
    from benchflow_sandbox_local.box import Box
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
        """Find the program.

        Raises:
            SandboxUnsupportedError: The program is missing, or this user cannot use it.
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
                " run the sandboxes: BENCHFLOW_LIVE_ENGINE=runsc",
            )
        return cls(program, _engine_library())

    def version(self) -> str:
        """Return the program and its version.

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
    def request(self) -> dict[str, str]:
        """The program in a request to the launcher."""
        return {"program": self.program, "preload": self.preload}


def _engine_library() -> str:
    try:
        return str(native.engine_library())
    except native.NativeMissingError as error:
        raise SandboxUnsupportedError(str(error)) from error


class CriuEngine:
    """Runs CRIU through one launcher, for `seconds` at most each time."""

    name = "criu"
    lost_in_fork: frozenset[str] = frozenset()

    def __init__(
        self, launcher: Launcher, program: CriuProgram, seconds: float, laziness: LazyRestorePolicy
    ) -> None:
        self._launcher = launcher
        self._program = program
        self._seconds = seconds
        self.laziness = laziness

    async def probe(self) -> str:
        """Return the program and its version.

        Raises:
            SandboxUnsupportedError: The program does not start, or is too old.
        """
        return await asyncio.to_thread(self._program.version)

    @asynccontextmanager
    async def dump(self, box: "Box", processes: ProcessTable) -> AsyncGenerator["PendingCriuDump"]:
        """Start the engine while the sandbox still runs. See `LiveEngine.dump`."""
        running, pool = box.running, box.stack.pool
        refuse_too_many(processes.all)
        shown = [(bundle.source, bundle.target) for bundle in box.spec.bundles]
        shown += [(path, path) for path in box.stack.base.binds]
        mounts = tuple(shown)
        layer = f"l{secrets.token_hex(3)}"
        # There may be a copy, as large as that.
        pool.boxes[layer] = MOST_BYTES
        place = box.place
        request: dict[str, Any] = {
            "engine": self._program.request,
            "family": place.family,
            "box": place.box,
            "size": place.size,
            "layer": layer,
            "pid": running.pid,
            "freezer": box.group.freezer,
            "mounts": _mounts(mounts),
            "seconds": self._seconds,
        }
        try:
            async with start(self._launcher, mounts, request) as call:
                yield PendingCriuDump(self, box, call)
        finally:
            del pool.boxes[layer]

    @asynccontextmanager
    async def restore(
        self, box: "Box", state: LiveState, *, held: bool, lazy: bool
    ) -> AsyncGenerator[RestoredBox]:
        """Restore a sandbox, with a second try after a failure. See `LiveEngine.restore`."""
        with PipeWiring.of(state.processes) as pipes:
            try:
                running = await self.run_restore(box, state, pipes, stopped=held, lazy=lazy)
            except SnapshotError:
                await box.reset()
                running = await self.run_restore(box, state, pipes, stopped=held)
            yield RestoredBox(running, pipes.made)

    async def run_restore(
        self,
        box: "Box",
        state: LiveState,
        pipes: PipeWiring,
        *,
        stopped: bool,
        lazy: bool = False,
    ) -> NamespaceRunningBox:
        """Restore a sandbox on a root of its own; with `stopped` it is frozen on return.

        A `lazy` one that is large enough runs before all of its memory is there.

        Raises:
            SnapshotError: The restore failed. The launcher still has to stop the sandbox.
        """
        place, group = box.new_place(), box.group
        memory = MemoryTransfer() if lazy and self.laziness.covers(state) else None
        request: dict[str, Any] = {
            "engine": self._program.request,
            "family": place.family,
            "box": place.box,
            "size": place.size,
            "lowers": place.lowers,
            "join": group.join,
            "group": group.clone_into,
            "door_ports": state.door_ports,
            "mounts": _mounts(state.mounts),
            "image": state.name,
            "image_bytes": state.bytes,
            "pipes": pipes.inodes,
            "stopped": stopped,
            "pager": None if memory is None else str(pager_path()),
        }
        with ExitStack() as undo:
            if memory is not None:
                undo.callback(memory.close)
            running = await self._restored(group, request, pipes, memory)
            undo.pop_all()
        pipes.connected()
        return running

    async def _restored(
        self,
        group: "Group",
        request: dict[str, Any],
        pipes: PipeWiring,
        memory: MemoryTransfer | None,
    ) -> NamespaceRunningBox:
        try:
            async with asyncio.timeout(self._seconds):
                running = await NamespaceRunningBox.restore(
                    self._launcher, request, pipes.fds, memory
                )
                if request["stopped"]:
                    await _freeze_stopped(group)
                return running
        except TimeoutError as error:
            why = f"the engine did not end in {self._seconds:.0f} s"
            raise SnapshotError(f"the sandbox cannot be restored: {why}") from error
        except HostError:
            raise
        except SandboxError as error:
            raise SnapshotError(f"the sandbox cannot be restored: {error}") from error

    async def inspect(self, box: "Box") -> SocketMakers:
        """Return who made the unix sockets of a frozen sandbox; raise `LossError`."""
        return await inspect(self._launcher, box.running.pid, box.group.members())

    async def retire(self, box: str, layer: str) -> None:
        """Unmount the root of a dumped sandbox; its upper directory becomes a layer."""
        await self._launcher.ask("retire", box=box, layer=layer)

    @property
    def library(self) -> str:
        """The library of the engine's process, which also searches images."""
        return self._program.preload


class PendingCriuDump:
    """A CRIU process that has started and waits until its sandbox is frozen."""

    def __init__(self, engine: CriuEngine, box: "Box", call: DumpCall) -> None:
        self._engine = engine
        self._box = box
        self._call = call
        self._makers: SocketMakers = []

    async def inspect(self) -> None:
        """Look for what a child of the frozen sandbox would lose; raise `LossError`."""
        self._makers = await self._engine.inspect(self._box)

    async def write(self, processes: ProcessTable, *, held: bool) -> UndigestedImage:
        """Dump the frozen sandbox. If the dump terminates the sandbox, restore it.

        Raises:
            SnapshotError: The dump failed. The sandbox continues, or is closed when it cannot.
        """
        box, stack, call = self._box, self._box.stack, self._call
        refuse_stopped(box.group.members())
        running, held_processes = box.running, processes.all
        assert isinstance(running, NamespaceRunningBox)
        ports = tuple(door_ports(box.spec))
        done = await call.run(running, held_processes, ports, self._makers)
        below = stack.layers
        try:
            if done.copied is None:
                layer = await self._come_back(running, done.state, held_processes, held=held)
            else:
                layer = Layer(call.layer, stack.pool, done.copied, "")
                stack.pool.layers[layer.name] = layer
        finally:
            unpark(held_processes)
        layers = (layer, *below)
        acquire_layers(layers)
        return UndigestedImage(stack.base, layers, done.state, stack.mark, self._engine.library)

    async def _come_back(
        self,
        running: NamespaceRunningBox,
        state: LiveState,
        processes: list[SandboxProcess],
        *,
        held: bool,
    ) -> Layer:
        """Restore a terminated sandbox on top of what was its upper directory."""
        box = self._box
        await box.disconnect()
        running.park()
        try:
            layer = await self._retire_upper()
            async with self._engine.restore(box, state, held=held, lazy=False) as restored:
                assert isinstance(restored.running, NamespaceRunningBox)
                # Callers hold `running` and its streams: these become the new ones.
                running.move(restored.running)
                for process in processes:
                    new = restored.streams[process.id].ends
                    for end, other in zip(process.streams.ends, new, strict=True):
                        end.become(other)
                await box.serve(running)
        except BaseException:
            running.close()
            await box.host.snapshots.delete_state(state)
            raise
        return layer

    async def _retire_upper(self) -> Layer:
        """Turn the upper directory of the dumped sandbox into its top layer."""
        stack = self._box.stack
        layer = Layer(self._call.layer, stack.pool, stack.pool.boxes[stack.box], "")
        await self._engine.retire(stack.box, layer.name)
        stack.pool.layers[layer.name] = layer
        del stack.pool.boxes[stack.box]
        stack.box = ""
        stack.layers = (layer, *stack.layers)
        acquire_layers((layer,))
        return layer


async def _freeze_stopped(group: "Group") -> None:
    """Turn the stop that the engine left into a freeze."""
    await group.freeze()
    for pid in group.members():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _mounts(mounts: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in mounts]
