"""The provider's workshop: bases, families, layers, and the lives of boxes."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError, SnapshotError
from benchflow_contracts.sandbox import Isolation, SandboxImage, SandboxSpec
from benchflow_contracts.seal import Seal
from benchflow_sandbox_core.owner import ProcessIdentity
from benchflow_sandbox_core.process import BoxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_native import identity_library, init_path

from .body import Body
from .box.checkpoint import MOST_BYTES
from .build.builder import Builder
from .cgroup.group import Group, new_group
from .cgroup.hierarchy import Hierarchies
from .launcher import Launcher, LauncherError, mount_point
from .lineage import Lineage
from .live.carried import Wiring, unpark
from .live.dump import Dump
from .live.engine import LiveEngine
from .live.forker import Forker
from .live.memory import resident
from .live.state import LiveState
from .live.stopped import refuse_stopped
from .machine import Machine, Place, stop
from .maker import During
from .networks import OWN, refuse_network
from .rootfs.base import Base
from .rootfs.bases import Bases
from .rootfs.source import RootSource
from .rootfs.store import ImageStore
from .sandbox import LocalSandbox
from .saving import Saver
from .store.budget import Budget
from .store.labels import PROVIDER, Label, LabelStore
from .store.layers import MAX_CHAIN, Family, Forked, Images, Layer, Sealed, hold, release
from .store.reap import GROUP_PREFIX
from .transfer.digest import Known
from .written import Written

_DEFAULT_DISK_MB = 2048


class Keeper:
    """Makes, seals, restarts and removes boxes through one launcher."""

    live_engine = "criu"
    isolation: Isolation = "namespaces"
    networks = OWN
    no_builds: str | None = None
    """Why boxes of this kind cannot be built in."""
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
        self._launcher = launcher
        self._forker: Forker | None = None
        self.no_live: SandboxUnsupportedError | None = None
        """Why there are no live snapshots."""
        try:
            self._forker = self._find_forker(launcher, live_seconds, rooted=rooted)
        except SandboxUnsupportedError as error:
            self.no_live = error
        self._root = str(mount_point(directory))
        self._saver = Saver(launcher, self._root, Seal(directory / "seal"), rooted=rooted)
        identity = None if self._forker is None else identity_library()
        self.bases = Bases(launcher, self._init(), identity)
        refusal = self.no_builds or (None if rooted else "files of several users need root")
        self.builder = Builder(self, ImageStore(directory / "images"), refusal=refusal)
        self._rooted = rooted
        self._store = store
        self._where = where
        self._owner = ProcessIdentity.of(os.getpid())
        self._launched = ProcessIdentity.of(launcher.pid)
        self._bodies: dict[str, Lineage] = {}
        self.images = Images()
        self._budget = Budget(live_budget, lambda: self.images.live_bytes)
        self.notes: dict[str, str] = {}
        self.sandboxes: dict[str, LocalSandbox] = {}

    async def create(
        self,
        spec: SandboxSpec,
        image: SandboxImage | None,
        labels: Mapping[str, str],
    ) -> LocalSandbox:
        """Start a sandbox; leave nothing behind when it does not start."""
        refuse_network(spec, self.networks)
        sealed = None if image is None else self.images.get(image)
        source = await self.builder.source(spec) if sealed is None else sealed.base.source
        return await self.create_from(source.config.fill(spec), sealed or source, labels)

    async def create_from(
        self, spec: SandboxSpec, made_from: Sealed | RootSource, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Start a sandbox of an image that was found, or from a snapshot."""
        sealed = made_from if isinstance(made_from, Sealed) else None
        if isinstance(made_from, Sealed):
            base = made_from.base
        else:
            base = await self.bases.of(made_from, spec.user)
        name = f"bf-{secrets.token_hex(6)}"
        group = new_group(self._where, f"{GROUP_PREFIX}{name}")
        self._store.write(self._label(name, labels, group))
        layers = () if sealed is None else sealed.layers
        family = layers[0].family if layers else Family(f"f-{name}")
        mark = None if sealed is None else sealed.mark
        self._bodies[name] = Lineage(base, family, layers, mark)
        hold(layers)
        sandbox = self._new_sandbox(name, spec, group, base)
        if layers:
            sandbox.known = Known(layers[0].digests, time.time_ns())
        self.sandboxes[name] = sandbox
        try:
            sandbox.group.create(spec.limits)
            if sealed is not None and sealed.live is not None:
                await self._bring_up(sandbox, sealed.live)
            else:
                await sandbox.adopt(await self._start(sandbox))
                await sandbox.start_entrypoint()
        except OSError as error:
            await finish(sandbox.teardown())
            raise SandboxError(f"sandbox {name!r} did not start: {error}") from error
        except BaseException:
            await finish(sandbox.teardown())
            raise
        return sandbox

    def _new_sandbox(self, name: str, spec: SandboxSpec, group: Group, base: Base) -> LocalSandbox:
        return LocalSandbox(name, spec, group, self, base, rooted=self._rooted)

    def _find_forker(self, launcher: Launcher, seconds: float, *, rooted: bool) -> Forker | None:
        return Forker(launcher, LiveEngine.find(rooted=rooted), seconds)

    def _init(self) -> str:
        return str(init_path())

    def _label(self, name: str, labels: Mapping[str, str], group: Group) -> Label:
        return Label(
            id=name,
            owner=self._owner,
            launcher=self._launched,
            created_at=time.time(),
            labels=dict(labels),
            groups=group.paths,
        )

    def _new_place(self, sandbox: LocalSandbox) -> Place:
        body = self._bodies[sandbox.id]
        # Each life has directories of its own: a restored box never sees the old upper.
        body.box = secrets.token_hex(4)
        limit = sandbox.spec.limits.disk_mb or _DEFAULT_DISK_MB
        body.family.boxes[body.box] = limit << 20
        return self._place(body)

    def _place(self, body: Lineage) -> Place:
        lowers = (*body.uppers(self._root)[1:], *body.base.lowers)
        return Place(body.family.name, body.box, body.family.size, lowers)

    def written(self, sandbox: LocalSandbox) -> Written:
        """Return what compares the files of a box with its mark."""
        return Written(self._bodies[sandbox.id], self._launcher, self._root)

    async def _start(self, sandbox: LocalSandbox) -> Body:
        body, place = self._bodies[sandbox.id], self._new_place(sandbox)
        spec, group = sandbox.spec, sandbox.group
        machine = await Machine.start(self._launcher, place, spec, body.base, group)
        self.notes.update(machine.notes)
        return machine

    async def _stop(self, body: Lineage) -> None:
        if not body.box:
            return
        box, body.box = body.box, ""
        body.family.boxes.pop(box, None)
        await stop(self._launcher, box, drop_family=body.family.empty)

    async def keep(self, sandbox: LocalSandbox, to: Path) -> None:
        """Copy what a sandbox has changed to `to`, an empty directory of the host.

        Raises:
            SandboxError: It failed; something may be in `to`.
        """
        body = self._bodies[sandbox.id]
        async with sandbox.hold_for_seal():
            await self._launcher.ask("keep", family=body.family.name, box=body.box, to=str(to))

    async def socket_in(self, netns: int) -> socket.socket:
        """Return a socket made in a network namespace."""
        answer = await self._launcher.ask("socket", (netns,))
        return socket.socket(fileno=answer.fds[0])

    def check(self, image: SandboxImage) -> None:
        """Raise `SnapshotError` when `image` cannot be restored."""
        self.images.get(image)

    async def seal(self, sandbox: LocalSandbox, during: During | None) -> SandboxImage:
        """Copy the sandbox's upper layer away while it is frozen, `during` before that.

        Raises:
            SnapshotError: It failed; nothing of it is left.
        """
        made: list[SandboxImage] = []
        async with AsyncExitStack() as still:
            await still.enter_async_context(sandbox.hold_for_seal())
            if during is not None:
                await during()
            try:
                return await finish(self._seal(sandbox, made, still))
            except asyncio.CancelledError:
                for image in made:
                    await finish(self.discard(image))
                raise
            except LauncherError as error:
                raise SnapshotError(f"cannot snapshot {sandbox.id!r}: {error}") from error

    async def _seal(
        self, sandbox: LocalSandbox, made: list[SandboxImage], still: AsyncExitStack
    ) -> SandboxImage:
        body = self._bodies[sandbox.id]
        name = f"l{secrets.token_hex(3)}"
        merged = len(body.layers) >= MAX_CHAIN
        # Until it is sealed, the copy may take as much as the box itself.
        body.family.boxes[name] = body.family.boxes[body.box]
        try:
            async with self._launcher.call(
                "seal",
                family=body.family.name,
                size=body.family.size,
                box=body.box,
                layer=name,
                under=[layer.path(self._root) for layer in body.layers] if merged else [],
                parent=body.base.key if merged or not body.layers else body.layers[0].digest,
            ) as call:
                size = (await call.answer()).message["bytes"]
                # The copy is whole: the box may run on while its digest is made.
                await still.aclose()
                told = (await call.answer()).message
        finally:
            del body.family.boxes[name]
        layer = Layer(name, body.family, size, told["digest"], told["traits"])
        twin = body.family.twin(layer)
        made.append(self._register(body, name, twin or layer, merged=merged))
        if twin is not None:
            await self._launcher.ask("drop", family=body.family.name, layer=name)
        return made[0]

    def forker(self) -> Forker:
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
    async def forking(self, sandbox: LocalSandbox) -> AsyncGenerator[Dump]:
        """Get ready to `fork` a box, so that it is frozen for less time."""
        forker, body, machine = self.forker(), self._bodies[sandbox.id], sandbox.machine
        assert isinstance(machine, Machine)
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

    async def fork(self, sandbox: LocalSandbox, dump: Dump, *, held: bool) -> Forked:
        """Write a frozen box down; one that ended by that is brought back.

        Raises:
            SnapshotError: It failed. The box goes on, or is gone when it cannot.
        """
        refuse_stopped(sandbox.group.members())
        body, machine, processes = self._bodies[sandbox.id], sandbox.machine, sandbox.processes
        assert isinstance(machine, Machine)
        port = None if sandbox.spec.model is None else sandbox.spec.model.port
        done = await dump.run(machine, processes, port)
        below = body.layers
        try:
            if done.copied is None:
                layer = await self._come_back(sandbox, machine, dump.layer, done.state, held=held)
            else:
                layer = Layer(dump.layer, body.family, done.copied, "")
                body.family.layers[layer.name] = layer
        finally:
            unpark(processes)
        return Forked(body.base, layer, below, done.state, body.mark)

    async def _come_back(
        self, sandbox: LocalSandbox, machine: Machine, layer: str, state: LiveState, *, held: bool
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

    async def publish(self, forked: Forked) -> SandboxImage:
        """Make an image of what `fork` returned."""
        forker, layer, state = self.forker(), forked.layer, forked.live
        family = layer.family.name
        parent = forked.below[0].digest if forked.below else forked.base.key
        try:
            layer.digest, digest = await forker.identify(state, family, layer.name, parent)
        except BaseException:
            await forker.forget(state)
            hold((layer,))
            await self._free(release((layer,)))
            raise
        image = SandboxImage(
            provider=PROVIDER,
            level="live",
            ref=f"{self._owner.pid}-{family}/{state.name}",
            digest=digest,
            bytes=state.bytes,
        )
        self.images.add(Sealed(image, forked.base, (layer, *forked.below), state, mark=forked.mark))
        return image

    async def _keep_upper(self, forker: Forker, body: Lineage, name: str) -> Layer:
        """Turn the upper of a dumped box into its top layer."""
        layer = Layer(name, body.family, body.family.boxes[body.box], "")
        await forker.retire(body.box, layer.name)
        body.family.layers[layer.name] = layer
        del body.family.boxes[body.box]
        body.box = ""
        body.layers = (layer, *body.layers)
        hold((layer,))
        return layer

    async def _go_on(
        self, sandbox: LocalSandbox, machine: Machine, state: LiveState, *, held: bool
    ) -> None:
        """Bring the parent back as one more child, in the life of its old handles."""
        with Wiring.of(state.processes) as wiring:
            made = await self._revive(sandbox, state, wiring, held=held, lazy=False)
            machine.move(made)
            for process in sandbox.processes:
                streams = wiring.made[process.id]
                for ours, new in zip(process.streams.ends, streams.ends, strict=True):
                    ours.become(new)
            await sandbox.adopt(machine)

    async def _bring_up(self, sandbox: LocalSandbox, state: LiveState) -> None:
        with Wiring.of(state.processes) as wiring:
            machine = await self._revive(sandbox, state, wiring, held=False, lazy=True)
            await sandbox.adopt(machine)
            for carried in state.processes:
                streams = wiring.made.pop(carried.id)
                sandbox.carry_in(BoxProcess(machine, carried.pid, streams, carried.id))

    async def _revive(
        self, sandbox: LocalSandbox, state: LiveState, wiring: Wiring, *, held: bool, lazy: bool
    ) -> Machine:
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

    def _register(self, body: Lineage, name: str, layer: Layer, *, merged: bool) -> SandboxImage:
        layers = (layer,) if merged else (layer, *body.layers)
        body.family.layers[layer.name] = layer
        image = SandboxImage(
            provider=PROVIDER,
            level="filesystem",
            ref=f"{self._owner.pid}-{body.family.name}/{name}",
            digest=layer.digest,
            bytes=layer.allowance,
        )
        self.images.add(Sealed(image, body.base, layers, mark=body.mark))
        return image

    async def restart(self, sandbox: LocalSandbox, image: SandboxImage) -> Body:
        """Kill the box and start it again from `image`."""
        sealed = self.images.get(image)
        body = self._bodies[sandbox.id]
        await self._stop(body)
        before, body.layers, body.base = body.layers, sealed.layers, sealed.base
        body.mark = sealed.mark
        hold(body.layers)
        await self._free(release(before))
        try:
            return await self._start(sandbox)
        except SandboxError as error:
            raise SnapshotError(f"cannot restore {image.ref!r}: {error}") from error

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to a directory that outlives this provider."""
        await finish(self._saver.save(self.images.get(image), to))

    async def load(self, saved: Path) -> SandboxImage:
        """Take in what `save` wrote."""
        live = self._saver.read(saved).live
        if live is not None:
            self.require_live()
        with self._budget.promised(0 if live is None else live.bytes):
            sealed = await finish(self._saver.load(saved, self._owner.pid, self.bases.of))
            self.images.add(sealed)
        return sealed.image

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot; free what nothing needs any more."""
        state = self.images.state(image)
        free = self.images.remove(image)
        if state is not None:
            await self._forget_state(state)
        await self._free(free)

    async def _forget_state(self, state: LiveState) -> None:
        await self.forker().forget(state)

    async def remove(self, sandbox: LocalSandbox) -> None:
        """Kill the box and remove everything of it. Idempotent."""
        body = self._bodies.pop(sandbox.id, None)
        if body is None:
            return
        # What the launcher cannot remove goes when it ends; a dead one has nothing left.
        with suppress(LauncherError):
            await self._stop(body)
        with suppress(LauncherError):
            await self._free(release(body.layers))
        sandbox.group.remove()
        self._store.remove(sandbox.id)
        self.sandboxes.pop(sandbox.id, None)

    async def _free(self, layers: list[Layer]) -> None:
        for layer in layers:
            family = layer.family
            family.layers.pop(layer.name, None)
            if family.empty:
                await self._launcher.ask("drop_family", family=family.name)
            else:
                await self._launcher.ask("drop", family=family.name, layer=layer.name)

    async def aclose(self) -> None:
        """Tear down every sandbox. Idempotent."""
        for sandbox in list(self.sandboxes.values()):
            await sandbox.teardown()
