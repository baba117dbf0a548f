"""Create sandboxes from images, recipes and snapshots."""

import secrets
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from benchflow_contracts.cause import host_error, host_is_short
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec
from benchflow_contracts.seal import Seal
from benchflow_sandbox_core.owner import current_owner
from benchflow_sandbox_core.shield import finish

from .box import Box, BoxHost
from .build.builder import Builder
from .cgroup.group import Group, new_group
from .cgroup.hierarchy import Hierarchies
from .launcher import Launcher, mount_point
from .live.snapshots import LiveImageBudget
from .rootfs.base import Bases
from .rootfs.source import RootSource
from .rootfs.store import ImageStore
from .runtime import BoxRuntime, refuse_network
from .sandbox import LocalSandbox
from .store.archive import SnapshotArchive
from .store.labels import Label, LabelStore
from .store.layers import LayerPool, LayerStack, StoredImage, acquire_layers
from .store.reap import GROUP_PREFIX
from .store.snapshots import SnapshotStore
from .transfer.digest import DigestCache


class BoxManager:
    """Creates and removes the sandboxes of one provider, and keeps their snapshots."""

    def __init__(
        self,
        launcher: Launcher,
        directory: Path,
        store: LabelStore,
        where: Hierarchies,
        runtime: BoxRuntime,
        *,
        rooted: bool,
        live_budget: int,
    ) -> None:
        root = str(mount_point(directory))
        self.snapshots = SnapshotStore(launcher)
        budget = LiveImageBudget(live_budget, lambda: self.snapshots.live_bytes)
        self.host = BoxHost(launcher, root, runtime, self.snapshots, budget, dict(runtime.notes))
        self._archive = SnapshotArchive(launcher, root, Seal(directory / "seal"), rooted=rooted)
        self.bases = Bases(launcher, str(runtime.init), runtime.identity)
        images = ImageStore(directory / "images")
        self.builder = Builder(self.create_from, images, refusal=runtime.build_refusal)
        self._rooted = rooted
        self._store = store
        self._where = where
        self._owner = current_owner()
        self._launcher = launcher
        self.sandboxes: dict[str, LocalSandbox] = {}

    @property
    def runtime(self) -> BoxRuntime:
        """The kind of the sandboxes."""
        return self.host.runtime

    async def create(
        self,
        spec: SandboxSpec,
        image: SandboxImage | None,
        labels: Mapping[str, str],
    ) -> LocalSandbox:
        """Start a sandbox; leave nothing behind when it does not start."""
        refuse_network(spec, self.runtime.networks)
        stored = None if image is None else self.snapshots.get(image)
        source = await self.builder.source(spec) if stored is None else stored.base.source
        return await self.create_from(source.config.fill(spec), stored or source, labels)

    async def create_from(
        self, spec: SandboxSpec, origin: StoredImage | RootSource, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Start a sandbox from an image or from a snapshot."""
        stored = origin if isinstance(origin, StoredImage) else None
        if isinstance(origin, StoredImage):
            base = origin.base
        else:
            base = await self.bases.of(origin, spec.user)
        name = f"bf-{secrets.token_hex(6)}"
        group = new_group(self._where, f"{GROUP_PREFIX}{name}")
        self._store.write(self._label(name, labels, group))
        layers = () if stored is None else stored.layers
        pool = layers[0].pool if layers else LayerPool(f"f-{name}")
        stack = LayerStack(base, pool, layers, None if stored is None else stored.mark)
        acquire_layers(layers)
        box = Box(name, spec, self.runtime.limit(group), stack, self.host)
        known = DigestCache(layers[0].digests, time.time_ns()) if layers else DigestCache()
        sandbox = LocalSandbox(
            box, base, rooted=self._rooted, known=known, on_removed=partial(self._removed, name)
        )
        self.sandboxes[name] = sandbox
        await self._start(box, sandbox, stored)
        return sandbox

    async def _start(self, box: Box, sandbox: LocalSandbox, stored: StoredImage | None) -> None:
        try:
            box.group.create(box.spec.limits)
            if stored is not None and stored.live is not None:
                await box.restore_live(stored.live, sandbox.processes)
            else:
                await box.start()
                await sandbox.start_entrypoint()
        except OSError as error:
            await finish(sandbox.teardown())
            if host_is_short(error):
                raise host_error(f"start sandbox {box.name!r}", error) from error
            raise SandboxError(f"sandbox {box.name!r} did not start: {error}") from error
        except BaseException:
            await finish(sandbox.teardown())
            raise

    def _label(self, name: str, labels: Mapping[str, str], group: Group) -> Label:
        return Label(
            id=name,
            owner=self._owner,
            launcher=self._launcher.name,
            created_at=time.time(),
            labels=dict(labels),
            groups=group.paths,
        )

    def _removed(self, name: str) -> None:
        self._store.remove(name)
        self.sandboxes.pop(name, None)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to a directory that outlives this provider."""
        await finish(self._archive.save(self.snapshots.get(image), to))

    async def load(self, saved: Path) -> SandboxImage:
        """Load a snapshot that `save` wrote."""
        live = self._archive.read(saved).live
        if live is not None:
            _ = self.runtime.live
        with self.host.budget.reserve(0 if live is None else live.bytes):
            stored = await finish(self._archive.load(saved, self.bases.of))
            self.snapshots.add(stored)
        return stored.image

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Idempotent."""
        await self.snapshots.discard(image)

    async def aclose(self) -> None:
        """Tear down every sandbox. Idempotent."""
        for sandbox in list(self.sandboxes.values()):
            await sandbox.teardown()
