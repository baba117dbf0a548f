"""The Environment of a manifest."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchflow_contracts import (
    EnvHandle,
    EnvironmentError_,
    EnvironmentFactory,
    EnvState,
    ProvisionContext,
    ReadinessProbe,
    SandboxSpec,
    StateSnapshot,
    Task,
    TaskError,
)

from .image import entrypoint_of, image_for, ports_for
from .manifest import Manifest
from .reader import load_manifest
from .state import StateStore
from .world import World

_log = logging.getLogger(__name__)


class ManifestEnvironment:
    """One world in one sandbox. Create a new object for each rollout and each fork.

    With `owns_lifecycle = false` it starts the services and stops exactly those; with
    `true` the image's entrypoint starts them, before `provision`, and they end with
    the sandbox. `keep_alive` and `isolation` need no action here: services run until
    `teardown`, and state lives as long as its sandbox, so a caller that provisions the same
    sandbox again gets `persistent` state.
    """

    def __init__(self, manifest: Manifest, directory: Path) -> None:
        """Describe a world; `directory` contains the manifest and its `images`."""
        self._manifest = manifest
        self._images = directory.absolute() / "images"
        self._world: World | None = None

    @property
    def manifest(self) -> Manifest:
        """The manifest."""
        return self._manifest

    @property
    def name(self) -> str:
        """The manifest's name."""
        return self._manifest.environment.name

    @property
    def needs_spawn(self) -> bool:
        """Whether this world starts processes by `Sandbox.spawn`."""
        environment = self._manifest.environment
        # To read a Postgres database, a session in such a process locks its tables.
        locks_tables = any(table.kind == "postgres" for table in environment.state)
        return bool(environment.services) or locks_tables

    def prepare(self, spec: SandboxSpec, *, task_id: str) -> SandboxSpec:
        """Return the spec of the sandbox that this world needs.

        Raises:
            ManifestError: The image's `entrypoint` file is malformed.
        """
        environment = self._manifest.environment
        image = image_for(self._manifest, spec)
        entrypoint = spec.entrypoint
        # The entrypoint has the variables of the whole sandbox, which the agent sees too.
        # Services of the framework get the forwarded values alone, see `provision`.
        env = {**spec.env, **self._selection_env(task_id, reach="entrypoint")}
        if environment.owns_lifecycle:
            entrypoint = entrypoint or entrypoint_of(self._images, image)
            env |= self._forwarded_env()
        search = tuple(dict.fromkeys((*spec.image_search, str(self._images))))
        ports = ports_for(self._manifest, spec)
        update = {"image": image, "image_search": search, "entrypoint": entrypoint}
        return spec.model_copy(update={**update, "env": env, "ports": ports})

    async def provision(self, ctx: ProvisionContext) -> EnvHandle:
        """Start the services on the existing state of the sandbox; do not seed it.

        Raises:
            EnvironmentError_: No service is installed, a state path is within the
                agent's reach, or this object is already provisioned.
            SandboxError: A service could not be started; the others are stopped again.
        """
        if self._world is not None:
            raise EnvironmentError_(
                f"environment {self.name!r} is already provisioned",
                hint="create a new environment for every sandbox",
            )
        env = self._selection_env(ctx.task_id, reach="exec")
        if not self._manifest.environment.owns_lifecycle:
            env |= self._forwarded_env()
        world = World(self._manifest, ctx, env)
        handle = await world.start()
        self._world = world
        return handle

    async def readiness(self) -> ReadinessProbe:
        """Wait until every probe answers, at most the manifest's timeout.

        A service that ends meanwhile is reported at once, with its last
        lines. When all answer, state files and hidden files are closed to the agent
        and the baseline of `reset` is captured.

        Raises:
            EnvironmentError_: One of these last steps failed.
        """
        return await self._provisioned().gate()

    async def query(self) -> EnvState:
        """Read every declared state: rows and digests of files, of one instant.

        It also works while the caller has frozen the sandbox, after the world is ready; for
        servers, only within `quiesce()`.
        Without `[environment.state]`, the state is empty.
        """
        world = self._provisioned()
        return await world.store.query() if world.store is not None else EnvState()

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None, None]:
        """Stop servers such as Redis and Postgres from writing, and read their state.

        Raises:
            EnvironmentError_: A server did not become idle; `retryable`.
        """
        async with AsyncExitStack() as stack:
            if self._world is not None and self._world.store is not None:
                await stack.enter_async_context(self._world.store.quiesce())
            yield

    async def snapshot(self) -> StateSnapshot:
        """Capture all declared state while the services run.

        Raises:
            RuntimeError: The manifest has no `[environment.state]`.
            EnvironmentError_: The capture failed; its files are removed.
        """
        return await self._store().snapshot()

    async def restore(self, snap: StateSnapshot) -> None:
        """Roll back all declared state; databases and servers show it at once.

        Raises:
            RuntimeError: The manifest has no `[environment.state]`.
            EnvironmentError_: The snapshot is missing or was changed, or a database
                stayed locked; the databases are unchanged.
        """
        await self._store().restore(snap)

    async def reset(self) -> None:
        """Restore the baseline: stop the services, restore, start, wait.

        The services of an image with `owns_lifecycle = true` cannot be restarted here, so this
        does nothing for them; create a new sandbox instead.

        Raises:
            ReadinessError: The services did not become ready again.
            EnvironmentError_: The baseline could not be restored.
        """
        world = self._provisioned()
        if not self._manifest.environment.owns_lifecycle:
            await world.reset()

    async def check(self, expected: EnvState | None = None) -> None:
        """Check that services run, state is undamaged and every declared invariant holds.

        With `expected`, check also that the state equals it.

        Raises:
            EnvironmentError_: A check failed; the message names all broken invariants.
            SnapshotError: The state differs from `expected`.
        """
        await self._provisioned().check(expected)

    async def reseed(self, seed: int) -> None:
        """Run `[environment.fork] reseed` with `BENCHFLOW_SEED`; nothing without it.

        Raises:
            EnvironmentError_: A command failed.
        """
        await self._provisioned().reseed(seed)

    async def live_services(self) -> Mapping[str, str]:
        """Return the process id of each service that the framework started.

        Within `quiesce`, also of each session that locks a server.
        Services of an image with `owns_lifecycle = true` are in a live image without an entry.

        Raises:
            SnapshotError: A service has ended.
        """
        return self._provisioned().live_services()

    async def teardown(self) -> None:
        """Stop the services that this object started, and only those. Idempotent."""
        world, self._world = self._world, None
        if world is not None:
            await world.stop()

    def _provisioned(self) -> World:
        if self._world is None:
            raise EnvironmentError_(
                f"environment {self.name!r} is not provisioned", hint="call `provision` first"
            )
        return self._world

    def _store(self) -> StateStore:
        store = self._provisioned().store if self._manifest.environment.state else None
        if store is None:
            raise RuntimeError(
                f"environment {self.name!r} is stateless: its manifest has no [environment.state]"
            )
        return store

    def _selection_env(self, task_id: str, *, reach: str) -> dict[str, str]:
        selection = self._manifest.environment.task_selection
        is_set = selection.mechanism == "env_var" and selection.inject_into == reach
        return {selection.key: task_id} if is_set else {}

    def _forwarded_env(self) -> Mapping[str, str]:
        values: dict[str, str] = {}
        for key in self._manifest.environment.forward_env.keys:
            if key in os.environ:
                values[key] = os.environ[key]
            else:
                _log.warning("environment %r: host variable %s is not set", self.name, key)
        return values


def manifest_environment(manifest: Path) -> EnvironmentFactory:
    """Read a manifest and return a factory of its environments.

    Raises:
        ManifestError: As `load_manifest` does.
    """
    read = load_manifest(manifest)
    directory = manifest.absolute().parent

    def make() -> ManifestEnvironment:
        return ManifestEnvironment(read, directory)

    return make


def environment_of_task(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return a factory of the environment of `task`, from its manifest.

    Raises:
        TaskError: The task has no manifest, or has options, which are not supported here.
        ManifestError: As `load_manifest` does.
    """
    if manifest is None:
        raise TaskError(
            f"task {task.id!r} has the environment 'manifest' but no environment.toml",
            where="task.toml:environment.provider",
            hint="put environment.toml into the task's folder `environment`",
        )
    if task.config.environment.options:
        raise TaskError(
            "the environment 'manifest' does not accept options",
            where="task.toml:environment.options",
            hint="write them into environment.toml",
        )
    return manifest_environment(manifest)
