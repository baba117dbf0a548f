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
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.spec import door_ports
from benchflow_sandbox_native import pager_path

from benchflow_sandbox_local.launcher import Launcher
from benchflow_sandbox_local.launcher_process.layers.inode_pins import MAX_COPIED_BYTES
from benchflow_sandbox_local.running_box import NamespaceRunningBox
from benchflow_sandbox_local.stopped_processes import refuse_stopped
from benchflow_sandbox_local.store.layers import Layer, UndigestedImage, acquire_layers

from .dump import DumpCall, SocketMakers, inspect, start
from .engine import RestoredBox
from .lazy import LazyRestorePolicy, MemoryTransfer
from .processes import LiveState, PipeWiring, refuse_too_many, unpark

if TYPE_CHECKING:
    from benchflow_sandbox_local.box import Box
    from benchflow_sandbox_local.cgroup.group import Group


PROGRAM = "BENCHFLOW_CRIU"
"""The environment variable that names the program; without it, `criu` on the PATH."""
OLDEST = (4, 2)
"""Older versions restore no socket of the internet family."""


@dataclass(frozen=True, slots=True)
class CriuProgram:
    """A CRIU program, and the library to preload into its process."""

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
            SandboxUnsupportedError: The program does not start, or is older than 4.2.
        """
        command = [self.program, "--version"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise SandboxUnsupportedError(f"{self.program!r} does not start: {error}") from error
        match = re.search(r"Version: (\d+)\.(\d+)", done.stdout)
        if match is None or (int(match[1]), int(match[2])) < OLDEST:
            raise SandboxUnsupportedError(
                f"{self.program!r} is too old: {done.stdout.strip()!r}",
                hint="install criu 4.2 or newer",
            )
        return f"{self.program}: {done.stdout.strip()}"

    @property
    def request(self) -> dict[str, str]:
        """The form of the program in a request to the launcher."""
        return {"program": self.program, "preload": self.preload}


def _engine_library() -> str:
    try:
        return str(native.engine_library())
    except native.NativeMissingError as error:
        raise SandboxUnsupportedError(str(error)) from error


class CriuEngine:
    """Runs CRIU through one launcher. Each dump or restore may take `seconds`."""

    name = "criu"
    lost_in_fork: frozenset[str] = frozenset()

    def __init__(
        self,
        launcher: Launcher,
        program: CriuProgram,
        seconds: float,
        lazy_policy: LazyRestorePolicy,
    ) -> None:
        self._launcher = launcher
        self._program = program
        self._seconds = seconds
        self.lazy_policy = lazy_policy

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
        bundles = [(bundle.source, bundle.target) for bundle in box.spec.bundles]
        mounts = (*bundles, *((path, path) for path in box.stack.base.binds))
        layer = f"l{secrets.token_hex(3)}"
        # The dump may copy the upper directory, up to this size.
        pool.boxes[layer] = MAX_COPIED_BYTES
        place = box.place
        request: dict[str, Any] = {
            "engine": self._program.request,
            "pool": place.pool,
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
        self, box: "Box", state: LiveState, *, frozen: bool, lazy: bool
    ) -> AsyncGenerator[RestoredBox]:
        """Restore a sandbox, with a second try after a failure. See `LiveEngine.restore`."""
        with PipeWiring.of(state.processes) as pipes:
            try:
                running = await self.run_restore(box, state, pipes, frozen=frozen, lazy=lazy)
            except SnapshotError:
                await box.reset()
                running = await self.run_restore(box, state, pipes, frozen=frozen)
            yield RestoredBox(running, pipes.streams)

    async def run_restore(
        self,
        box: "Box",
        state: LiveState,
        pipes: PipeWiring,
        *,
        frozen: bool,
        lazy: bool = False,
    ) -> NamespaceRunningBox:
        """Restore a sandbox on a root of its own; with `frozen` it is frozen on return.

        With `lazy`, a large sandbox runs before all of its memory is loaded.

        Raises:
            SnapshotError: The restore failed. The launcher must still stop the sandbox.
        """
        place, group = box.new_place(), box.group
        memory = MemoryTransfer() if lazy and self.lazy_policy.covers(state) else None
        request: dict[str, Any] = {
            "engine": self._program.request,
            "pool": place.pool,
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
            "stopped": frozen,
            "pager": None if memory is None else str(pager_path()),
        }
        with ExitStack() as undo:
            if memory is not None:
                undo.callback(memory.close)
            running = await self._send_restore(group, request, pipes, memory)
            undo.pop_all()
        pipes.close_child_ends()
        return running

    async def _send_restore(
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
            raise SnapshotError(
                f"the sandbox cannot be restored: the engine did not end in {self._seconds:.0f} s"
            ) from error
        except HostError:
            raise
        except SandboxError as error:
            raise SnapshotError(f"the sandbox cannot be restored: {error}") from error

    async def inspect(self, box: "Box") -> SocketMakers:
        """Return the makers of the unix sockets of a frozen sandbox; raise `LossError`."""
        return await inspect(self._launcher, box.running.pid, box.group.members())

    async def retire(self, box: str, layer: str) -> None:
        """Unmount the root of a dumped sandbox; its upper directory becomes a layer."""
        await self._launcher.ask("retire", box=box, layer=layer)

    @property
    def library(self) -> str:
        """The library that is preloaded into the engine; it also searches images."""
        return self._program.preload


class PendingCriuDump:
    """A CRIU process that has started and waits until its sandbox is frozen."""

    def __init__(self, engine: CriuEngine, box: "Box", call: DumpCall) -> None:
        self._engine = engine
        self._box = box
        self._call = call
        self._makers: SocketMakers = []

    async def inspect(self) -> None:
        """Raise `LossError` if a child of the frozen sandbox would lose something."""
        self._makers = await self._engine.inspect(self._box)

    async def write(self, processes: ProcessTable, *, stay_frozen: bool) -> UndigestedImage:
        """Dump the frozen sandbox. If the dump terminates the sandbox, restore it.

        Raises:
            SnapshotError: The dump failed. The sandbox continues, or is closed when it cannot.
        """
        box, stack, call = self._box, self._box.stack, self._call
        refuse_stopped(box.group.members())
        running, open_processes = box.running, processes.all
        assert isinstance(running, NamespaceRunningBox)
        ports = tuple(door_ports(box.spec))
        result = await call.run(running, open_processes, ports, self._makers)
        below = stack.layers
        try:
            if result.copied is None:
                layer = await self._restore_terminated(
                    running, result.state, open_processes, frozen=stay_frozen
                )
            else:
                layer = Layer(call.layer, stack.pool, result.copied, "")
                stack.pool.layers[layer.name] = layer
        finally:
            unpark(open_processes)
        layers = (layer, *below)
        acquire_layers(layers)
        return UndigestedImage(stack.base, layers, result.state, stack.mark, self._engine.library)

    async def _restore_terminated(
        self,
        running: NamespaceRunningBox,
        state: LiveState,
        processes: list[SandboxProcess],
        *,
        frozen: bool,
    ) -> Layer:
        """Restore a sandbox that the dump has terminated; its upper directory is now a layer."""
        box = self._box
        await box.disconnect()
        running.park()
        try:
            layer = await self._retire_upper()
            async with self._engine.restore(box, state, frozen=frozen, lazy=False) as restored:
                assert isinstance(restored.running, NamespaceRunningBox)
                # Callers have `running` and its streams, so both must refer to the new sandbox.
                running.move(restored.running)
                for process in processes:
                    new = restored.streams[process.id].ends
                    for end, other in zip(process.streams.ends, new, strict=True):
                        end.replace_pipe(other)
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
    """Freeze a group whose processes the engine has stopped by a signal, and end that stop."""
    await group.freeze()
    for pid in group.members():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _mounts(mounts: tuple[tuple[str, str], ...]) -> list[dict[str, str]]:
    return [{"source": source, "target": target} for source, target in mounts]
