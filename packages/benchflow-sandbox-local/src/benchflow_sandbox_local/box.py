"""One sandbox: its layers, its control group and its processes."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    SandboxTimeoutError,
    SnapshotError,
)
from benchflow_contracts.sandbox import NetworkMode, SandboxImage, SandboxSpec
from benchflow_sandbox_core.freezing import Freezer
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.running_box import responds
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.spec import with_network
from benchflow_sandbox_native import InitError

from .cgroup.group import Group
from .change_tracker import ChangeTracker
from .host_services import HostServices
from .launcher import Launcher, LauncherError
from .live.processes import LiveState
from .live.snapshots import LiveImageBudget, LiveSnapshots, WhileFrozen
from .running_box import LocalRunningBox, Place
from .runtime import BoxRuntime
from .stopped_processes import while_stopped
from .store.layers import MAX_CHAIN, Layer, LayerStack, acquire_layers, release_layers
from .store.snapshots import SnapshotStore

_DEFAULT_DISK_MB = 2048
_END_POLLS, _POLL_SECONDS = 250, 0.02


@dataclass(frozen=True, slots=True)
class BoxHost:
    """The parts that all sandboxes of one provider share."""

    launcher: Launcher
    root: str
    """The directory in which the launcher mounts its file systems."""
    runtime: BoxRuntime
    snapshots: SnapshotStore
    budget: LiveImageBudget
    notes: dict[str, str] = field(default_factory=dict[str, str])
    """Missing features of this machine, for `capabilities()`."""


class SandboxBox(Protocol):
    """The part of `Box` that `LocalSandbox` uses."""

    name: str
    spec: SandboxSpec
    group: Group
    services: HostServices
    freezer: Freezer

    @property
    def running(self) -> LocalRunningBox:
        """The running sandbox; raise `SandboxError` when it is gone or lost."""
        ...

    def alive(self) -> AbstractAsyncContextManager[LocalRunningBox]:
        """Yield the running sandbox. If it is lost, an error of the block says so.

        Raises:
            SandboxLostError: Something outside ended the sandbox, or it does not answer.
        """
        ...

    @property
    def changes(self) -> ChangeTracker:
        """Compares the files of the sandbox, while it is frozen, with their baseline.

        Raises:
            SandboxUnsupportedError: The files of the sandbox are not separate from others.
        """
        ...

    def while_files_unchanged(self) -> AbstractAsyncContextManager[None]:
        """Freeze the sandbox for the block; where nothing can freeze, stop its processes."""
        ...

    async def serve(self, running: LocalRunningBox) -> None:
        """Use `running` as the running sandbox; serve its doors and its allowed hosts."""
        ...

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str]) -> None:
        """Change which hosts the inside can reach."""
        ...

    def require_live(self) -> None:
        """Raise `SandboxUnsupportedError` when no live snapshot can be taken here."""
        ...

    async def seal(self, while_frozen: WhileFrozen | None) -> SandboxImage:
        """Copy the upper directory into a new layer while the sandbox is frozen."""
        ...

    async def snapshot_live(
        self, processes: ProcessTable, work: Gate, while_frozen: WhileFrozen | None
    ) -> SandboxImage:
        """Take a live snapshot."""
        ...

    def check(self, image: SandboxImage) -> None:
        """Raise `SnapshotError` when `image` cannot be restored."""
        ...

    async def restart(self, image: SandboxImage) -> None:
        """Kill every process and start again from `image`."""
        ...

    async def remove(self) -> None:
        """Kill every process and remove all files. Idempotent."""
        ...


class Box:
    """Owns the layers, the control group and the processes of one sandbox."""

    def __init__(
        self, name: str, spec: SandboxSpec, group: Group, stack: LayerStack, host: BoxHost
    ) -> None:
        self.name = name
        self.spec = spec
        self.group = group
        self.stack = stack
        self.host = host
        self.services = HostServices(lambda: self.running)
        switch = host.runtime.freeze_switch(group, lambda: self.running)
        self.freezer = Freezer(switch, lambda: self.running.init)
        self._switch = switch
        self._running: LocalRunningBox | None = None

    @property
    def running(self) -> LocalRunningBox:
        """The running sandbox; raise `SandboxError` when it is gone or lost."""
        running = self._running_or_lost()
        if running.closed:
            raise SandboxError(f"sandbox {self.name!r} is lost", hint="restore or replace it")
        return running

    @asynccontextmanager
    async def alive(self) -> AsyncGenerator[LocalRunningBox]:
        """Yield the running sandbox. If it is lost, an error of the block says so."""
        running = self.running
        try:
            if running.has_ended:
                raise self._loss(running)
            yield running
        except HostError:
            raise
        except SandboxError as error:
            if running is not self._running or running.closed:
                raise
            if await self._is_lost(running, error):
                raise self._loss(running) from error
            raise

    async def _is_lost(self, running: LocalRunningBox, error: SandboxError) -> bool:
        cause = error.__cause__
        if isinstance(cause, InitError) and cause.stage == "connection":
            # Its connections break a moment before its first process is gone.
            # `ended` belongs to other tasks: a descriptor has one reader.
            for _ in range(_END_POLLS):
                if running.has_ended:
                    break
                await asyncio.sleep(_POLL_SECONDS)
        if running.has_ended or self.freezer.is_frozen:
            return running.has_ended
        if not isinstance(error, SandboxTimeoutError):
            return False
        return not await responds(running.init) and not self.freezer.is_frozen

    def _loss(self, running: LocalRunningBox) -> SandboxError:
        if not running.has_ended:
            return SandboxLostError(f"sandbox {self.name!r} does not answer any more")
        # gVisor's kernel is a process that the limit kills. The init of a namespace is too small.
        if running.file_access == "guest" and self.group.hits("memory"):
            return SandboxLimitError(f"sandbox {self.name!r} ended: its memory limit was hit")
        return SandboxLostError(
            f"sandbox {self.name!r} ended: a process outside killed its first process"
        )

    def _running_or_lost(self) -> LocalRunningBox:
        if self._running is None:
            raise SandboxError(f"sandbox {self.name!r} is gone", hint="create a new one")
        return self._running

    async def start(self) -> None:
        """Start the first process and serve it.

        Raises:
            SandboxError: The sandbox did not start. The caller must still call `remove`.
        """
        base, runtime = self.stack.base, self.host.runtime
        running = await runtime.start(self.new_place(), self.spec, base, self.group)
        self.host.notes.update(running.notes)
        await self.serve(running)

    async def serve(self, running: LocalRunningBox) -> None:
        """Use `running` as the running sandbox; serve its doors and its allowed hosts."""
        self._running = running
        await self.services.start(running, self.spec)

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str]) -> None:
        """Change which hosts the inside can reach."""
        self.spec = with_network(self.spec, mode, allowed_hosts)
        await self.services.switch(self.spec)

    def new_place(self) -> Place:
        """Create a place for the next start. It does not have the old upper directory."""
        stack = self.stack
        stack.box = secrets.token_hex(4)
        limit = self.spec.limits.disk_mb or _DEFAULT_DISK_MB
        stack.pool.boxes[stack.box] = limit << 20
        return self.place

    @property
    def place(self) -> Place:
        """The directories of the present start."""
        stack = self.stack
        lowers = (*stack.uppers(self.host.root)[1:], *stack.base.lowers)
        return Place(stack.pool.name, stack.box, stack.pool.size, lowers)

    async def stop(self) -> None:
        """Kill every process and remove the files that they wrote. Idempotent."""
        stack = self.stack
        if not stack.box:
            return
        box, stack.box = stack.box, ""
        stack.pool.boxes.pop(box, None)
        async with asyncio.timeout(30):
            await self.host.launcher.ask("stop", box=box, drop_pool=stack.pool.empty)

    async def reset(self) -> None:
        """Stop, and create a new control group: a failed restore leaves processes in the old."""
        await self.stop()
        self.group.remove()
        self.group.create(self.spec.limits)

    @property
    def changes(self) -> ChangeTracker:
        """Compares the files of the sandbox, while it is frozen, with their baseline."""
        host = self.host
        return ChangeTracker(
            self.stack, host.launcher, host.root, counts=host.runtime.counts_processes
        )

    def while_files_unchanged(self) -> AbstractAsyncContextManager[None]:
        """Freeze the sandbox for the block; where nothing can freeze, stop its processes."""
        if self._switch.can_freeze:
            return self.freezer.while_frozen()
        return self.freezer.while_stopped_by(while_stopped(self.running.pid))

    async def copy_changes(self, to: Path) -> None:
        """Copy the upper directory of the sandbox to `to`, an empty directory of the host.

        Raises:
            SandboxError: The copy failed. `to` may contain a part of it.
        """
        pool, box = self.stack.pool.name, self.stack.box
        async with self.while_files_unchanged():
            await self.host.launcher.ask("copy_upper", pool=pool, box=box, to=str(to))

    async def seal(self, while_frozen: WhileFrozen | None) -> SandboxImage:
        """Copy the upper directory into a new layer while the sandbox is frozen.

        `while_frozen` runs first.

        Raises:
            SnapshotError: The copy failed, and no part of it is left.
        """
        images: list[SandboxImage] = []
        async with AsyncExitStack() as freeze:
            await freeze.enter_async_context(self.while_files_unchanged())
            if while_frozen is not None:
                await while_frozen()
            try:
                return await finish(self._seal(images, freeze))
            except asyncio.CancelledError:
                for image in images:
                    await finish(self.host.snapshots.discard(image))
                raise
            except HostError:
                raise
            except LauncherError as error:
                raise SnapshotError(f"cannot snapshot {self.name!r}: {error}") from error

    async def _seal(self, images: list[SandboxImage], freeze: AsyncExitStack) -> SandboxImage:
        async with self.sealed_layers(freeze) as layers:
            name = f"l{secrets.token_hex(3)}"
            images.append(self.host.snapshots.add_files(self.stack, layers, name))
        return images[0]

    @asynccontextmanager
    async def sealed_layers(self, freeze: AsyncExitStack) -> AsyncGenerator[tuple[Layer, ...]]:
        """Copy the upper directory into a layer; yield the layers of a snapshot, top first.

        Close `freeze` as soon as the copy is complete. Inside the block the layers are in use.
        """
        stack, launcher = self.stack, self.host.launcher
        name = f"l{secrets.token_hex(3)}"
        merged = len(stack.layers) >= MAX_CHAIN
        # Until the copy is sealed, it may take as many bytes as the sandbox itself.
        stack.pool.boxes[name] = stack.pool.boxes[stack.box]
        try:
            async with launcher.call(
                "seal",
                pool=stack.pool.name,
                size=stack.pool.size,
                box=stack.box,
                layer=name,
                under=[layer.path(self.host.root) for layer in stack.layers] if merged else [],
                parent=stack.base.key if merged else stack.parent,
            ) as call:
                size = (await call.answer()).message["bytes"]
                # The copy is complete: the sandbox may run while the launcher computes the digest.
                await freeze.aclose()
                sealed = (await call.answer()).message
        finally:
            del stack.pool.boxes[name]
        layer = Layer(name, stack.pool, size, sealed["digest"], sealed["traits"])
        twin = stack.pool.twin(layer)
        top = twin or layer
        stack.pool.layers[top.name] = top
        layers = (top,) if merged else (top, *stack.layers)
        acquire_layers(layers)
        try:
            yield layers
            if twin is not None:
                await launcher.ask("remove_layer", pool=stack.pool.name, layer=name)
        finally:
            await self.host.snapshots.free(release_layers(layers))

    def check(self, image: SandboxImage) -> None:
        """Raise `SnapshotError` when `image` cannot be restored."""
        self.host.snapshots.get(image)

    async def restart(self, image: SandboxImage) -> None:
        """Kill every process and start again from `image`."""
        sealed = self.host.snapshots.get(image)
        old = self._running_or_lost()
        await self.services.stop(old)
        self._running = None
        old.close()
        await self.stop()
        stack, before = self.stack, self.stack.layers
        stack.layers, stack.base, stack.mark = sealed.layers, sealed.base, sealed.mark
        acquire_layers(stack.layers)
        await self.host.snapshots.free(release_layers(before))
        try:
            await self.start()
        except SandboxError as error:
            raise SnapshotError(f"cannot restore {image.ref!r}: {error}") from error

    def require_live(self) -> None:
        """Raise `SandboxUnsupportedError` when no live snapshot can be taken here."""
        _ = self.host.runtime.live

    async def snapshot_live(
        self, processes: ProcessTable, work: Gate, while_frozen: WhileFrozen | None
    ) -> SandboxImage:
        """Take a live snapshot. See `LiveSnapshots.take`."""
        return await LiveSnapshots(self, processes, work).take(while_frozen)

    async def restore_live(self, state: LiveState, processes: ProcessTable) -> None:
        """Start a new sandbox from a live image.

        Raises:
            SnapshotError: The image cannot be restored. The caller must still call `remove`.
        """
        engine = self.host.runtime.live
        async with engine.restore(self, state, frozen=False, lazy=True) as restored:
            await self.serve(restored.running)
            for image_process in state.processes:
                name, pid = image_process.id, image_process.pid
                streams = restored.streams.pop(name)
                process = SandboxProcess(restored.running, pid, streams, name)
                processes.add_restored(process)

    async def disconnect(self) -> None:
        """End the connections into a sandbox that has ended; the exposed addresses stay valid."""
        await self.services.hang_up(self._running)

    async def remove(self) -> None:
        """Kill every process and remove all files. Idempotent."""
        self.freezer.release()
        await self.services.aclose(self._running)
        running, self._running = self._running, None
        if running is not None:
            running.close()
        # The launcher removes the rest when it ends; a dead launcher has left nothing.
        with suppress(LauncherError):
            await self.stop()
        layers, self.stack.layers = self.stack.layers, ()
        with suppress(LauncherError):
            await self.host.snapshots.free(release_layers(layers))
        self.group.remove()
