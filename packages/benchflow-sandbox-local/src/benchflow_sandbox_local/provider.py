"""The provider `local`: sandboxes on this host's own kernel."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, cast

from benchflow_contracts import RolloutIdentity, host_error, host_is_short
from benchflow_contracts.errors import (
    SandboxError,
    SandboxUnsupportedError,
    UsageError,
)
from benchflow_contracts.open_files import raise_open_files_limit
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord
from benchflow_sandbox_core.closeable import AsyncCloseable
from benchflow_sandbox_core.paths import state_directory
from benchflow_sandbox_core.spec import check_spec

from benchflow_sandbox_local.live.lazy import lazy_threshold
from benchflow_sandbox_local.store.labels import LOCKS, PROVIDER, LabelStore
from benchflow_sandbox_local.store.reap import IMAGES, reap, sweep_groups
from benchflow_sandbox_local.unisolated.manager import CAPABILITIES, PlainManager

from .cgroup import hierarchy
from .launcher import Launcher, LauncherError, mount_point
from .manager import BoxManager
from .runtime import BoxRuntime, NamespaceRuntime
from .sandbox import LocalSandbox

LiveImages = Literal["memory", "disk"]
PLACE = "BENCHFLOW_LIVE_IMAGES"
"""The environment variable for `live_images`, when that option is not set."""
Engine = Literal["criu", "runsc"]
ENGINE = "BENCHFLOW_LIVE_ENGINE"
"""The environment variable for `engine`, when that option is not set."""


class LocalProvider(AsyncCloseable):
    """Creates isolated sandboxes with namespaces, an overlay root, seccomp and cgroups.

    It needs Linux, and neither a daemon nor an image registry. As root everything works. Without
    root it uses a user namespace, and `capabilities()` reports the missing features. Where the
    kernel allows no namespaces it refuses every call, unless `allow_unisolated` accepts plain
    processes.

    `store` is the directory of labels and unpacked images (default: one per user).
    `live_budget_mb` limits the size of the processes in all live images. `live_images` is the
    place of live images: `memory`, or the `disk` of the store (default: $BENCHFLOW_LIVE_IMAGES,
    then memory). `live_seconds` limits the time of one dump or one restore: a sandbox whose dump
    takes longer is lost. `engine` runs and forks the sandboxes: `criu` on this kernel, `runsc` on
    gVisor's (default: $BENCHFLOW_LIVE_ENGINE, then criu). A child of a live image of at least
    `lazy_megabytes` runs before all of its memory is loaded, after `capabilities()` has shown that
    this works (default: $BENCHFLOW_LAZY_MEGABYTES, then 80; 0 turns it off).
    """

    def __init__(
        self,
        *,
        allow_unisolated: bool = False,
        store: Path | None = None,
        prefer_cgroup_v2: bool = False,
        live_budget_mb: int = 8192,
        live_images: LiveImages | None = None,
        live_seconds: float = 120,
        engine: Engine | None = None,
        lazy_megabytes: int | None = None,
    ) -> None:
        self._allow_unisolated = allow_unisolated
        self._directory = store or state_directory()
        self._prefer_v2 = prefer_cgroup_v2
        self._live_budget = live_budget_mb << 20
        self._live_images = live_images or _place_of_images()
        self._live_seconds = live_seconds
        self._engine = engine or _engine()
        self._lazy_megabytes = lazy_threshold(lazy_megabytes)
        self._rooted = os.geteuid() == 0
        self._launcher: Launcher | None = None
        self._manager: BoxManager | PlainManager | None = None
        self._capabilities: SandboxCapabilities | None = None
        self._starting = asyncio.Lock()
        self._probing = asyncio.Lock()

    @property
    def name(self) -> str:
        """The provider's name in the registry."""
        return PROVIDER

    @property
    def open_files_per_rollout(self) -> int:
        """The most open files of one rollout, as measured with 16 at one time."""
        return 20 if self._engine == "runsc" else 12

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> LocalSandbox:
        """Start a sandbox, from the spec or from a snapshot; it is ready on return."""
        check_spec(spec)
        manager = await self._ready()
        return await manager.create(spec, image, (identity or RolloutIdentity()).labels())

    async def ready(self) -> None:
        """Start the launcher, which makes the namespaces of every sandbox."""
        await self._ready()

    async def capabilities(self) -> SandboxCapabilities:
        """Detect capabilities by real probes, once. May take several seconds."""
        async with self._probing:
            if self._capabilities is None:
                # Most jobs do not need the probe, so its modules load here.
                from .capability_probe import probe  # noqa: PLC0415

                manager = await self._ready()
                if isinstance(manager, PlainManager):
                    self._capabilities = CAPABILITIES
                else:
                    self._capabilities = await probe(manager)
            return self._capabilities

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the sandboxes of this provider in its store, also of dead owners.

        With `scope`, only those of one scope.
        """
        for label in LabelStore(self._directory / "boxes").all():
            record = label.record()
            if scope is None or scope == record.identity.scope:
                yield record

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Its sandboxes continue. Idempotent."""
        if self._manager is not None:
            await self._manager.discard(image)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to `to`, a new host directory that outlives this provider."""
        await (await self._ready()).save(image, to)

    async def load(self, saved: Path) -> SandboxImage:
        """Load a snapshot that `save` wrote, in this process or an earlier one on this machine.

        The image below the snapshot must still exist, unchanged.
        """
        return await (await self._ready()).load(saved)

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove sandboxes of dead owners; return their records. With `dry_run` remove nothing."""
        return await asyncio.to_thread(reap, self._directory, policy)

    async def _aclose(self) -> None:
        try:
            if self._manager is not None:
                await self._manager.aclose()
        finally:
            if self._launcher is not None:
                await self._launcher.aclose()

    async def _ready(self) -> BoxManager | PlainManager:
        async with self._starting:
            if self._closed:
                raise SandboxError("the provider is closed", hint="make a new one")
            if self._manager is None:
                self._manager = await self._start()
            return self._manager

    async def _start(self) -> BoxManager | PlainManager:
        raise_open_files_limit()
        store = LabelStore(self._directory / "boxes")
        try:
            self._launcher = await self._launch()
        except SandboxUnsupportedError:
            if not self._allow_unisolated:
                raise
            return PlainManager(store.plain, store)
        where = hierarchy.find(prefer_v2=self._prefer_v2)
        sweep_groups(self._directory)
        return BoxManager(
            self._launcher,
            self._directory,
            store,
            where,
            self._runtime(self._launcher),
            rooted=self._rooted,
            live_budget=self._live_budget,
        )

    def _runtime(self, launcher: Launcher) -> BoxRuntime:
        rooted, seconds = self._rooted, self._live_seconds
        if self._engine == "runsc":
            # Sandboxes on the host's kernel do not need the modules of gVisor.
            from .gvisor.runtime import GvisorRuntime  # noqa: PLC0415

            return GvisorRuntime(launcher, rooted=rooted, seconds=seconds)
        megabytes = self._lazy_megabytes
        return NamespaceRuntime(launcher, rooted=rooted, seconds=seconds, lazy_megabytes=megabytes)

    async def _launch(self) -> Launcher:
        root, locks = mount_point(self._directory), self._directory / LOCKS
        try:
            for path in (self._directory, root, locks):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            return await Launcher.start(
                root,
                locks=locks,
                userns=not self._rooted,
                budget=self._live_budget,
                disk=self._directory / IMAGES if self._live_images == "disk" else None,
            )
        except (OSError, LauncherError) as error:
            if error.errno is not None and host_is_short(OSError(error.errno, "")):
                raise host_error("start the launcher of the sandboxes", error) from error
            raise SandboxUnsupportedError(
                f"this machine does not allow namespaces for this user: {error}",
                hint="run as root, enable user namespaces, or accept --allow-unisolated",
            ) from error


def _engine() -> Engine:
    named = os.environ.get(ENGINE) or "criu"
    if named not in {"criu", "runsc"}:
        raise UsageError(f"${ENGINE} is {named!r}", hint="set it to 'criu' or 'runsc'")
    return cast("Engine", named)


def _place_of_images() -> LiveImages:
    named = os.environ.get(PLACE) or "memory"
    if named not in {"memory", "disk"}:
        raise UsageError(f"${PLACE} is {named!r}", hint="set it to 'memory' or 'disk'")
    return cast("LiveImages", named)
