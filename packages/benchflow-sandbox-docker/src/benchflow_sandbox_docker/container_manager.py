"""The provider's workshop: makes, seals and removes containers of one owner."""

import asyncio
import hashlib
import secrets
import shutil
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.container import ContainerOptions
from benchflow_contracts.errors import (
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_contracts.image import ImageRecipe
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec
from benchflow_contracts.seal import Seal
from benchflow_contracts.service import MAIN
from benchflow_sandbox_core.owner import ProcessIdentity
from benchflow_sandbox_core.shield import finish, finish_or

from .changes import ContainerChangeTracker
from .commit_limiter import AdmittedCommit, CommitLimiter
from .container_config import ContainerConfig
from .container_setup import make_ready
from .disk_limit import DiskLimitProbe
from .engine import BRIDGE, NOTHING, DockerEngine, GoneError
from .image_resolver import ImageResolver
from .image_without_volumes import ImagesWithoutVolumes
from .images import ImageDetails, SnapshotImages
from .labels import PREFIX, SANDBOX, ResourceLabel
from .running_container import RunningContainer
from .sandbox import DockerSandbox
from .services import ServiceStack, with_options
from .snapshot_archive import SnapshotArchiver


class ContainerManager:
    """Owns every container and snapshot of one provider."""

    def __init__(
        self,
        engine: DockerEngine,
        directory: Path,
        owner: ProcessIdentity,
        images: SnapshotImages,
        sources: ImageResolver,
    ) -> None:
        self.engine = engine
        self.images = images
        self._directory = directory
        self._owner = owner
        self.sources = sources
        self.disk = DiskLimitProbe(engine)
        self._written = ContainerChangeTracker(engine)
        self._volumes = ImagesWithoutVolumes(engine)
        self._late = images.late
        self._commits = CommitLimiter(engine)
        self._texts = ContentFiles(directory / "texts")
        self.saver = SnapshotArchiver(
            engine, images, Seal(directory.parent / "seal"), self._written
        )
        self._bridged = False
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._labels: dict[str, ResourceLabel] = {}
        self._facts: dict[str, ImageDetails] = {}
        self._containers: dict[str, str] = {}
        """The engine's own names."""
        self._parents: dict[str, str] = {}
        """The snapshots that sandboxes were made from."""
        self._stacks: dict[str, ServiceStack] = {}
        """Services, by the sandbox that they were made for."""
        self._beside: dict[str, ServiceStack] = {}
        """The same, also by sandboxes that stand in for those."""

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> DockerSandbox:
        """Start a container; it is ready on return.

        Raises:
            SandboxError: It did not start; nothing is left behind.
        """
        if "public" in {spec.network, *spec.switches} and not await self._has_bridge():
            raise SandboxUnsupportedError(
                "the engine has no network 'bridge' to the public",
                hint="start dockerd without --bridge=none",
            )
        if image is not None and (spec.services or spec.container.volumes):
            raise SandboxUnsupportedError(
                "what services hold is in no snapshot: no other sandbox can go on from one",
                hint="restore the sandbox itself, or fork a task without services",
            )
        try:
            return await self._create(spec, image, labels)
        except GoneError:
            if image is not None or spec.recipe is None:
                raise
            self.sources.forget(spec)
            return await self._create(spec, None, labels)

    async def _has_bridge(self) -> bool:
        # Nobody can remove it, and an engine that is started anew without it refuses containers.
        self._bridged = self._bridged or await self.engine.has_network(BRIDGE)
        return self._bridged

    async def _create(
        self,
        spec: SandboxSpec,
        image: SandboxImage | None,
        labels: Mapping[str, str],
        beside: ServiceStack | None = None,
    ) -> DockerSandbox:
        spec = self._texts.as_files(spec)
        facts = await self._volumes.without(await self.sources.facts(spec, image))
        name = f"d-{secrets.token_hex(6)}"
        label = ResourceLabel(name, self._owner, time.time(), dict(labels))
        stack = self._stack(label, spec)
        if beside is not None:
            self._beside[name] = beside
        self._labels[name] = label
        images = {MAIN: facts.digest}
        sandbox = self._sandboxes[name] = DockerSandbox(name, spec, self, images)
        if image is not None:
            self._came_from(sandbox, image)
        try:
            if stack is not None:
                await stack.begin()
            sandbox.adopt(await self._start(sandbox, facts), facts)
            await sandbox.start_entrypoint()
            if stack is not None:
                await stack.complete()
                images.update(stack.images)
        except BaseException:
            await sandbox.teardown()
            raise
        return sandbox

    def _stack(self, label: ResourceLabel, spec: SandboxSpec) -> ServiceStack | None:
        if not spec.services and not spec.container.volumes:
            return None
        stack = ServiceStack(self.engine, self._late, label, spec, self._image_of)
        self._stacks[label.id] = self._beside[label.id] = stack
        return stack

    @asynccontextmanager
    async def replace_main(
        self,
        sandbox: DockerSandbox,
        image: SandboxImage,
        spec: SandboxSpec,
        labels: Mapping[str, str],
    ) -> AsyncGenerator[DockerSandbox]:
        """Have another sandbox in the place of one that stands still, for the block.

        Raises:
            SandboxError: One of both could not be brought onto the networks.
        """
        stack, container = self.stack(sandbox), sandbox.machine.container
        self.images.check(image)
        await stack.networks.step_aside(container)
        try:
            twin = await self._create(spec, image, labels, stack)
            try:
                yield twin
            finally:
                await twin.teardown()
        finally:
            await finish(stack.networks.step_back(container))

    async def _image_of(self, image: str | None, recipe: ImageRecipe | None) -> ImageDetails:
        return await self.sources.facts(SandboxSpec(image=image, recipe=recipe), None)

    def stack(self, sandbox: DockerSandbox) -> ServiceStack:
        """Return the services of a sandbox; raise `SandboxError` when it has none."""
        if sandbox.id not in self._stacks:
            raise SandboxError(f"sandbox {sandbox.id!r} has no services")
        return self._stacks[sandbox.id]

    async def _start(self, sandbox: DockerSandbox, facts: ImageDetails) -> RunningContainer:
        pipes = self._directory / sandbox.id / secrets.token_hex(4)
        pipes.mkdir(mode=0o700, parents=True)
        label = self._labels[sandbox.id].encode(SANDBOX)
        capped = await self.disk.why_unsupported(facts.id) is None
        plan = ContainerConfig(PREFIX + sandbox.id, facts.id, pipes, label, capped=capped)
        self._facts[sandbox.id] = facts
        own = sandbox.spec.container.model_copy(update={"volumes": {}})
        arguments = with_options(plan.arguments(sandbox.spec), own, {})
        stack = self._beside.get(sandbox.id)
        if stack is not None:
            arguments = stack.with_main(arguments)
        volumes = () if stack is None else stack.main_volumes
        with self._late.track("container", plan.name, volumes):
            made = await self.engine.do("create_container_from_config", arguments, plan.name)
        self._containers[sandbox.id] = made["Id"]
        if stack is not None:
            await stack.join(made["Id"], sandbox.spec)
        machine = await RunningContainer.start(self.engine, plan.name, pipes)
        try:
            async with machine.explained():
                await make_ready(machine, sandbox.spec, facts)
        except BaseException:
            machine.close()
            raise
        return machine

    def check(self, image: SandboxImage) -> None:
        """Raise `SnapshotError` when `image` cannot be restored."""
        self.images.check(image)

    async def seal(self, sandbox: DockerSandbox) -> SandboxImage:
        """Make an image of a sandbox that stands still.

        One whose commit is late is ended with that.

        Raises:
            SnapshotError: It failed, or a volume of the image would not be in it.
            SandboxLimitError: It wrote more than its disk limit, holes counted.
            HostError: The engine's disk has no room for a copy.
        """
        facts = self._facts[sandbox.id]
        if facts.volumes:
            raise SnapshotError(
                f"the image of {sandbox.id!r} keeps {', '.join(facts.volumes)} in volumes, which "
                "no snapshot of a container holds",
                hint="this engine takes no image without its layers: use an image without VOLUME",
            )
        container, labels = sandbox.machine.container, self._labels[sandbox.id].labels
        async with self._commits.admit(container, sandbox.spec.limits.disk_mb) as admit:
            work = self._commit(sandbox, admit, facts, labels)
            image = await finish_or(work, self.images.discard)
        self._written.carry(sandbox.id, image.ref)
        return image

    async def _commit(
        self,
        sandbox: DockerSandbox,
        admit: AdmittedCommit,
        facts: ImageDetails,
        labels: Mapping[str, str],
    ) -> SandboxImage:
        container, seconds = admit.container, admit.seconds
        try:
            return await self.images.commit(container, facts, labels, seconds=seconds)
        except SnapshotError as error:
            if isinstance(error.__cause__, SandboxTimeoutError):
                # Nobody may see it without its files.
                sandbox.machine.close()
                await admit.end()
                await self._late.remove()
            raise

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot. Sandboxes made from it go on. Idempotent."""
        self._written.forget(image.ref)
        await self.images.discard(image)

    async def set_baseline(self, sandbox: DockerSandbox) -> None:
        """Remember the files of a container that was made from its spec."""
        image = self._parents.get(sandbox.id, "")
        await self._written.set_baseline(sandbox.id, sandbox.machine.container, image=image)

    async def changed_files(self, sandbox: DockerSandbox) -> FileChanges:
        """Return what was written since the mark, while the container stands still."""
        return await self._written.changed_files(sandbox.id, sandbox.machine.container)

    async def fingerprints(self, sandbox: DockerSandbox) -> Mapping[str, str]:
        """Return prints of its files, which stand still, when nothing but our own runs there.

        Raises:
            SandboxUnsupportedError: Something else does, or there is no mark.
        """
        container = sandbox.machine.container
        self._written.marked(sandbox.id)
        if len((await self.engine.do("top", container))["Processes"]) != 1:
            raise SandboxUnsupportedError(
                f"sandbox {sandbox.id!r} has processes that could write beside its holder"
            )
        return await self._written.fingerprints(sandbox.id, container)

    async def take_for_ours(self, sandbox: DockerSandbox, before: Mapping[str, str]) -> None:
        """Let what was written since `before` be no change, while the container stands still."""
        await self._written.take_for_ours(sandbox.id, sandbox.machine.container, before)

    def _came_from(self, sandbox: DockerSandbox, image: SandboxImage) -> None:
        self._parents[sandbox.id] = image.ref
        self._written.forget(sandbox.id)
        self._written.carry(image.ref, sandbox.id)

    async def restart(self, sandbox: DockerSandbox, image: SandboxImage) -> None:
        """Remove the container; let the sandbox adopt another, made from `image`."""
        facts = await self.sources.facts(sandbox.spec, image)
        await self._remove_container(sandbox)
        self._came_from(sandbox, image)
        sandbox.adopt(await self._start(sandbox, facts), facts)
        if sandbox.spec.entrypoint == "image":
            await sandbox.start_entrypoint()

    async def remove(self, sandbox: DockerSandbox) -> None:
        """Remove the container and everything of it. Idempotent."""
        if sandbox.id in self._sandboxes:
            await self._remove_container(sandbox)
            await self._late.remove()
            if sandbox.id in self._stacks:
                await self._stacks[sandbox.id].remove()
                del self._stacks[sandbox.id]
            del self._sandboxes[sandbox.id], self._labels[sandbox.id]
            self._beside.pop(sandbox.id, None)
            self._facts.pop(sandbox.id, None)
            self._parents.pop(sandbox.id, None)
            self._written.forget(sandbox.id)
            await self.images.sweep()

    async def cut(self, sandbox: DockerSandbox) -> None:
        """Take a container off the way to the public: what is open there goes nowhere."""
        await self.engine.do(
            "disconnect_container_from_network", sandbox.machine.container, BRIDGE, force=True
        )

    async def route(self, sandbox: DockerSandbox) -> None:
        """Put a container on the way to the public.

        Raises:
            SandboxError: The engine refused; nothing is reached.
        """
        container = sandbox.machine.container
        with suppress(SandboxError):
            # No other network can be beside it; one that has none is on none of ours.
            await self.engine.do("disconnect_container_from_network", container, NOTHING)
        await self.engine.do("connect_container_to_network", container, BRIDGE)

    async def _remove_container(self, sandbox: DockerSandbox) -> None:
        try:
            # By its id: a removal that fails has taken the name already.
            container = self._containers.get(sandbox.id, PREFIX + sandbox.id)
            await self.engine.remove(container)
            self._containers.pop(sandbox.id, None)
        finally:
            shutil.rmtree(self._directory / sandbox.id, ignore_errors=True)

    async def aclose(self) -> None:
        """Tear everything down. Idempotent."""
        try:
            async with asyncio.TaskGroup() as group:
                for sandbox in list(self._sandboxes.values()):
                    group.create_task(sandbox.teardown())
        except* SandboxError as errors:
            raise errors.exceptions[0] from errors
        finally:
            await self._late.remove()
            await self.images.aclose()


_O = TypeVar("_O", bound=ContainerOptions)


class ContentFiles:
    """Writes each content once, below a directory that outlives every sandbox of a provider."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def as_files(self, spec: SandboxSpec) -> SandboxSpec:
        """Return a spec whose containers have files of the host in the place of contents."""
        services = tuple(self._of(service) for service in spec.services)
        update = {"container": self._of(spec.container), "services": services}
        return spec.model_copy(update=update)

    def _of(self, options: _O) -> _O:
        if not options.texts:
            return options
        written = {inside: self._write(text) for inside, text in options.texts.items()}
        return options.model_copy(update={"files": {**options.files, **written}, "texts": {}})

    def _write(self, text: str) -> Path:
        data = text.encode()
        path = self._directory / hashlib.sha256(data).hexdigest()
        if not path.exists():
            self._directory.mkdir(mode=0o700, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o444)
        return path
