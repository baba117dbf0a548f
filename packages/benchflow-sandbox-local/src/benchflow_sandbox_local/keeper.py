"""The provider's workshop, with live snapshots by CRIU."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError, SnapshotError
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_native import identity_library

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.cgroup.hierarchy import Hierarchies
from benchflow_sandbox_local.launcher_process.layers.inode_pins import MOST_BYTES
from benchflow_sandbox_local.live.budget import resident
from benchflow_sandbox_local.live.criu import CriuEngine, CriuProgram
from benchflow_sandbox_local.live.dump import DumpCall, SocketMakers, inspect
from benchflow_sandbox_local.live.processes import LiveState, PipeWiring, refuse_too_many, unpark
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.store.labels import PROVIDER, LabelStore
from benchflow_sandbox_local.store.layers import (
    Layer,
    LayerStack,
    StoredImage,
    UndigestedImage,
    acquire_layers,
    release_layers,
)

from .boxes import Boxes
from .launcher import Launcher
from .running_box import NamespaceRunningBox
from .sandbox import LocalSandbox
from .stopped_processes import refuse_stopped


class Keeper(Boxes):
    """Makes boxes, and forks those that run."""

    live_engine = "criu"
    lost_in_fork: frozenset[str] = frozenset()
    """What a live fork refuses to carry, in the words of the probe."""

    def __init__(
        self,
        launcher: Launcher,
        directory: Path,
        store: LabelStore,
        where: Hierarchies,
        *,
        rooted: bool,
        live_budget: int,
        live_seconds: float,
    ) -> None:
        self._forker: CriuEngine | None = None
        self.no_live: SandboxUnsupportedError | None = None
        """Why there are no live snapshots."""
        try:
            self._forker = self._find_forker(launcher, live_seconds, rooted=rooted)
        except SandboxUnsupportedError as error:
            self.no_live = error
        super().__init__(
            launcher,
            directory,
            store,
            where,
            rooted=rooted,
            live_budget=live_budget,
            identity=None if self._forker is None else identity_library(),
        )

    def _find_forker(
        self, launcher: Launcher, seconds: float, *, rooted: bool
    ) -> CriuEngine | None:
        return CriuEngine(launcher, CriuProgram.find(rooted=rooted), seconds)

    def _new_sandbox(self, name: str, spec: SandboxSpec, group: Group, base: Base) -> LocalSandbox:
        return LocalSandbox(name, spec, group, self, base, rooted=self._rooted)

    def forker(self) -> CriuEngine:
        """Return what takes live snapshots.

        Raises:
            SandboxUnsupportedError: Nothing here can.
        """
        if self.no_live is not None:
            raise SandboxUnsupportedError(
                f"no live snapshot can be taken: {self.no_live}", hint=self.no_live.hint
            )
        assert self._forker is not None
        return self._forker

    async def live_version(self) -> str:
        """Return what the engine of live snapshots says of itself.

        Raises:
            SandboxUnsupportedError: There is none, or it is too old.
        """
        return await self.forker().version()

    def require_live(self) -> None:
        """Raise `SandboxUnsupportedError` when nothing here takes live snapshots."""
        self.forker()

    @asynccontextmanager
    async def forking(self, sandbox: LocalSandbox) -> AsyncGenerator[DumpCall]:
        """Get ready to `fork` a box, so that it is frozen for less time."""
        forker, body, machine = self.forker(), self._bodies[sandbox.id], sandbox.machine
        assert isinstance(machine, NamespaceRunningBox)
        refuse_too_many(sandbox.processes)
        await machine.filled()
        shown = [(mount.source, mount.target) for mount in sandbox.spec.mounts]
        shown += [(path, path) for path in body.base.binds]
        layer = f"l{secrets.token_hex(3)}"
        # There may be a copy, as large as that.
        body.family.boxes[layer] = MOST_BYTES
        place = self._place(body)
        need = sum(resident(pid) for pid in sandbox.group.members())
        try:
            with self._budget.promised(need):
                async with forker.dump(machine, place, layer, sandbox.group, tuple(shown)) as dump:
                    yield dump
        finally:
            del body.family.boxes[layer]

    async def inspect(self, sandbox: LocalSandbox) -> SocketMakers:
        """Return who made the unix sockets of a frozen box.

        Raises:
            LossError: A child would lack something.
        """
        return await inspect(self._launcher, sandbox.machine.pid, sandbox.group.members())

    async def fork(
        self, sandbox: LocalSandbox, dump: DumpCall, makers: SocketMakers, *, held: bool
    ) -> UndigestedImage:
        """Write a frozen box down; one that ended by that is brought back.

        Raises:
            SnapshotError: It failed. The box goes on, or is gone when it cannot.
        """
        refuse_stopped(sandbox.group.members())
        body, machine, processes = self._bodies[sandbox.id], sandbox.machine, sandbox.processes
        assert isinstance(machine, NamespaceRunningBox)
        port = None if sandbox.spec.model is None else sandbox.spec.model.port
        done = await dump.run(machine, processes, port, makers)
        below = body.layers
        try:
            if done.copied is None:
                layer = await self._come_back(sandbox, machine, dump.layer, done.state, held=held)
            else:
                layer = Layer(dump.layer, body.family, done.copied, "")
                body.family.layers[layer.name] = layer
        finally:
            unpark(processes)
        return UndigestedImage(body.base, layer, below, done.state, body.mark)

    async def _come_back(
        self,
        sandbox: LocalSandbox,
        machine: NamespaceRunningBox,
        layer: str,
        state: LiveState,
        *,
        held: bool,
    ) -> Layer:
        """Bring a dumped box back on top of what was its upper directory."""
        forker, body = self.forker(), self._bodies[sandbox.id]
        await sandbox.disconnect()
        machine.park()
        try:
            kept = await self._keep_upper(forker, body, layer)
            await self._go_on(sandbox, machine, state, held=held)
        except BaseException:
            machine.close()
            await forker.forget(state)
            raise
        return kept

    async def publish(self, forked: UndigestedImage) -> SandboxImage:
        """Make an image of what `fork` returned."""
        forker, layer, state = self.forker(), forked.layer, forked.live
        family = layer.family.name
        parent = forked.below[0].digest if forked.below else forked.base.key
        try:
            layer.digest, digest = await forker.identify(state, family, layer.name, parent)
        except BaseException:
            await forker.forget(state)
            acquire_layers((layer,))
            await self._free(release_layers((layer,)))
            raise
        image = SandboxImage(
            provider=PROVIDER,
            level="live",
            ref=f"{self._owner.pid}-{family}/{state.name}",
            digest=digest,
            bytes=state.bytes,
        )
        self.images.add(
            StoredImage(image, forked.base, (layer, *forked.below), state, mark=forked.mark)
        )
        return image

    async def _keep_upper(self, forker: CriuEngine, body: LayerStack, name: str) -> Layer:
        """Turn the upper of a dumped box into its top layer."""
        layer = Layer(name, body.family, body.family.boxes[body.box], "")
        await forker.retire(body.box, layer.name)
        body.family.layers[layer.name] = layer
        del body.family.boxes[body.box]
        body.box = ""
        body.layers = (layer, *body.layers)
        acquire_layers((layer,))
        return layer

    async def _go_on(
        self, sandbox: LocalSandbox, machine: NamespaceRunningBox, state: LiveState, *, held: bool
    ) -> None:
        """Bring the parent back as one more child, in the life of its old handles."""
        with PipeWiring.of(state.processes) as wiring:
            made = await self._revive(sandbox, state, wiring, held=held, lazy=False)
            machine.move(made)
            for process in sandbox.processes:
                streams = wiring.made[process.id]
                for ours, new in zip(process.streams.ends, streams.ends, strict=True):
                    ours.become(new)
            await sandbox.adopt(machine)

    async def _bring_up(self, sandbox: LocalSandbox, state: LiveState) -> None:
        with PipeWiring.of(state.processes) as wiring:
            machine = await self._revive(sandbox, state, wiring, held=False, lazy=True)
            await sandbox.adopt(machine)
            for carried in state.processes:
                streams = wiring.made.pop(carried.id)
                sandbox.carry_in(SandboxProcess(machine, carried.pid, streams, carried.id))

    async def _revive(
        self, sandbox: LocalSandbox, state: LiveState, wiring: PipeWiring, *, held: bool, lazy: bool
    ) -> NamespaceRunningBox:
        """Bring a box back, with a second try after a failure."""
        forker, body, group = self.forker(), self._bodies[sandbox.id], sandbox.group
        place = self._new_place(sandbox)
        try:
            return await forker.revive(state, place, group, wiring, stopped=held, lazy=lazy)
        except SnapshotError:
            await self._stop(body)
            group.remove()
            group.create(sandbox.spec.limits)
        place = self._new_place(sandbox)
        return await forker.revive(state, place, group, wiring, stopped=held)

    async def _forget_state(self, state: LiveState) -> None:
        await self.forker().forget(state)
