"""The provider's workshop: bases, families, layers, and the lives of boxes."""

import asyncio
import os
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from benchflow_contracts.cause import host_error, host_is_short
from benchflow_contracts.errors import HostError, SandboxError, SnapshotError
from benchflow_contracts.sandbox import Isolation, SandboxImage, SandboxSpec
from benchflow_contracts.seal import Seal
from benchflow_sandbox_core.owner import ProcessIdentity
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_native import init_path

from benchflow_sandbox_local.build.builder import Builder
from benchflow_sandbox_local.cgroup.group import Group, new_group
from benchflow_sandbox_local.cgroup.hierarchy import Hierarchies
from benchflow_sandbox_local.live.budget import LiveImageBudget
from benchflow_sandbox_local.live.processes import LiveState
from benchflow_sandbox_local.rootfs.base import Base, Bases
from benchflow_sandbox_local.rootfs.source import RootSource
from benchflow_sandbox_local.rootfs.store import ImageStore
from benchflow_sandbox_local.store.archive import SnapshotArchive
from benchflow_sandbox_local.store.labels import PROVIDER, Label, LabelStore
from benchflow_sandbox_local.store.layers import (
    MAX_CHAIN,
    ImageTable,
    Layer,
    LayerPool,
    LayerStack,
    StoredImage,
    acquire_layers,
    release_layers,
)
from benchflow_sandbox_local.store.reap import GROUP_PREFIX
from benchflow_sandbox_local.transfer.digest import DigestCache

from .change_tracker import ChangeTracker
from .launcher import Launcher, LauncherError, mount_point
from .maker import During
from .networks import OWN, refuse_network
from .running_box import LocalRunningBox, NamespaceRunningBox, Place, stop
from .sandbox import LocalSandbox

_DEFAULT_DISK_MB = 2048


class Boxes(ABC):
    """Makes, seals, restarts and removes boxes through one launcher."""

    isolation: Isolation = "namespaces"
    networks = OWN
    no_builds: str | None = None
    """Why boxes of this kind cannot be built in."""

    def __init__(
        self,
        launcher: Launcher,
        directory: Path,
        store: LabelStore,
        where: Hierarchies,
        *,
        rooted: bool,
        live_budget: int,
        identity: Path | None,
    ) -> None:
        self._launcher = launcher
        self._root = str(mount_point(directory))
        self._saver = SnapshotArchive(launcher, self._root, Seal(directory / "seal"), rooted=rooted)
        self.bases = Bases(launcher, self._init(), identity)
        refusal = self.no_builds or (None if rooted else "files of several users need root")
        self.builder = Builder(self, ImageStore(directory / "images"), refusal=refusal)
        self._rooted = rooted
        self._store = store
        self._where = where
        self._owner = ProcessIdentity.of(os.getpid())
        self._launched = ProcessIdentity.of(launcher.pid)
        self._bodies: dict[str, LayerStack] = {}
        self.images = ImageTable()
        self._budget = LiveImageBudget(live_budget, lambda: self.images.live_bytes)
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
        self, spec: SandboxSpec, made_from: StoredImage | RootSource, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Start a sandbox of an image that was found, or from a snapshot."""
        sealed = made_from if isinstance(made_from, StoredImage) else None
        if isinstance(made_from, StoredImage):
            base = made_from.base
        else:
            base = await self.bases.of(made_from, spec.user)
        name = f"bf-{secrets.token_hex(6)}"
        group = new_group(self._where, f"{GROUP_PREFIX}{name}")
        self._store.write(self._label(name, labels, group))
        layers = () if sealed is None else sealed.layers
        family = layers[0].family if layers else LayerPool(f"f-{name}")
        mark = None if sealed is None else sealed.mark
        self._bodies[name] = LayerStack(base, family, layers, mark)
        acquire_layers(layers)
        sandbox = self._new_sandbox(name, spec, group, base)
        if layers:
            sandbox.known = DigestCache(layers[0].digests, time.time_ns())
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
            if host_is_short(error):
                raise host_error(f"start sandbox {name!r}", error) from error
            raise SandboxError(f"sandbox {name!r} did not start: {error}") from error
        except BaseException:
            await finish(sandbox.teardown())
            raise
        return sandbox

    @abstractmethod
    def _new_sandbox(self, name: str, spec: SandboxSpec, group: Group, base: Base) -> LocalSandbox:
        """Make what has no box yet."""

    @abstractmethod
    def require_live(self) -> None:
        """Raise `SandboxUnsupportedError` when nothing here takes live snapshots."""

    @abstractmethod
    async def _bring_up(self, sandbox: LocalSandbox, state: LiveState) -> None:
        """Give a new sandbox a box that goes on from a live snapshot."""

    @abstractmethod
    async def _forget_state(self, state: LiveState) -> None:
        """Free the processes of a live snapshot."""

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

    def _place(self, body: LayerStack) -> Place:
        lowers = (*body.uppers(self._root)[1:], *body.base.lowers)
        return Place(body.family.name, body.box, body.family.size, lowers)

    def written(self, sandbox: LocalSandbox) -> ChangeTracker:
        """Return what compares the files of a box with its mark."""
        return ChangeTracker(self._bodies[sandbox.id], self._launcher, self._root)

    async def _start(self, sandbox: LocalSandbox) -> LocalRunningBox:
        body, place = self._bodies[sandbox.id], self._new_place(sandbox)
        spec, group = sandbox.spec, sandbox.group
        machine = await NamespaceRunningBox.start(self._launcher, place, spec, body.base, group)
        self.notes.update(machine.notes)
        return machine

    async def _stop(self, body: LayerStack) -> None:
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

    async def seal(self, sandbox: LocalSandbox, while_frozen: During | None) -> SandboxImage:
        """Copy the sandbox's upper layer away while it is frozen, `while_frozen` before that.

        Raises:
            SnapshotError: It failed; nothing of it is left.
        """
        made: list[SandboxImage] = []
        async with AsyncExitStack() as still:
            await still.enter_async_context(sandbox.hold_for_seal())
            if while_frozen is not None:
                await while_frozen()
            try:
                return await finish(self._seal(sandbox, made, still))
            except asyncio.CancelledError:
                for image in made:
                    await finish(self.discard(image))
                raise
            except HostError:
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

    def _register(self, body: LayerStack, name: str, layer: Layer, *, merged: bool) -> SandboxImage:
        layers = (layer,) if merged else (layer, *body.layers)
        body.family.layers[layer.name] = layer
        image = SandboxImage(
            provider=PROVIDER,
            level="filesystem",
            ref=f"{self._owner.pid}-{body.family.name}/{name}",
            digest=layer.digest,
            bytes=layer.allowance,
        )
        self.images.add(StoredImage(image, body.base, layers, mark=body.mark))
        return image

    async def restart(self, sandbox: LocalSandbox, image: SandboxImage) -> LocalRunningBox:
        """Kill the box and start it again from `image`."""
        sealed = self.images.get(image)
        body = self._bodies[sandbox.id]
        await self._stop(body)
        before, body.layers, body.base = body.layers, sealed.layers, sealed.base
        body.mark = sealed.mark
        acquire_layers(body.layers)
        await self._free(release_layers(before))
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

    async def remove(self, sandbox: LocalSandbox) -> None:
        """Kill the box and remove everything of it. Idempotent."""
        body = self._bodies.pop(sandbox.id, None)
        if body is None:
            return
        # What the launcher cannot remove goes when it ends; a dead one has nothing left.
        with suppress(LauncherError):
            await self._stop(body)
        with suppress(LauncherError):
            await self._free(release_layers(body.layers))
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
