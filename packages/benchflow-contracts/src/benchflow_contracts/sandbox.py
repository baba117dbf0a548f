"""The Sandbox plane: where a rollout runs."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from ._model import Model
from .bundle import Bundle
from .container import NO_OPTIONS, ContainerOptions
from .door import Door, DoorPath, Endpoint, OutsidePath
from .identity import RolloutIdentity
from .image import ImageRecipe
from .limits import ResourceKind, ResourceLimits
from .process import Process
from .sandbox_record import ReapPolicy, SandboxRecord
from .service import ServiceSpec

SnapshotLevel = Literal["filesystem", "live"]
"""`filesystem` holds files; `live` holds files, processes and sockets."""

SnapshotConsistency = Literal["instant", "crash_consistent"]
"""`instant`: the files of one instant, at which no process ran. `crash_consistent`: the files as a
power cut leaves them; a process may have been between two writes."""

FreezeLevel = Literal["kernel", "guest", "none"]
"""`kernel`: the host stops every process. `guest`: a program inside stops all other processes, and
a process with its rights can undo that. `none`: nothing stops the processes."""

Isolation = Literal["none", "namespaces", "container", "vm"]
NetworkMode = Literal["none", "model-only", "allowlist", "public"]


class SandboxSpec(Model):
    """The specification of a sandbox."""

    image: str | None = None
    """A provider-specific reference. `None` or `host` is the provider's default."""
    recipe: ImageRecipe | None = None
    """The build of the image. Needs `image=None` and the capability `builds`."""
    image_search: tuple[str, ...] = ()
    """Host directories in which the provider looks for `image` by name before any registry."""
    workdir: str = "/workspace"
    """The default cwd of `exec` and `spawn`. If it is missing, it is created and belongs to `user`.

    `""` is the image's own working directory, which `Sandbox.spec` then names.
    """
    user: str = "agent"
    """The default user of `exec` and `spawn`: a number, or a name that is created if it is missing.

    `""` is the image's own user, or root if the image does not set one. `Sandbox.spec` then names
    the user.
    """
    env: Mapping[str, str] = {}
    """The variables of every process, including the image's entrypoint."""
    entrypoint: tuple[str, ...] | Literal["image"] | None = None
    """A command that root runs once after the start, such as for services in the image. `image`:
    the image's own user runs its own entrypoint, with the arguments `sh -c "sleep infinity"`."""
    bundles: tuple[Bundle, ...] = ()
    network: NetworkMode = "none"
    allowed_hosts: tuple[str, ...] = ()
    """For `allowlist`: names, `*.example.org`, addresses and CIDR blocks, without ports."""
    switches: tuple[NetworkMode, ...] = ()
    """The modes that `SupportsNetworkSwitch.switch_network` may set while the sandbox runs."""
    doors: tuple[Door, ...] = ()
    """Doors need another network than `none`, also in `switches`. Names and ports are unique."""
    ports: tuple[int, ...] = ()
    """The ports inside that `Sandbox.expose_port` may expose."""
    limits: ResourceLimits = ResourceLimits()
    services: tuple[ServiceSpec, ...] = ()
    """Containers that start and end with the sandbox, and reach it as `main`. A freeze does not
    pause them, a snapshot does not contain them, and `restore` does not change them. Needs the
    capability `services`."""
    inner_networks: frozenset[str] = frozenset()
    """The networks of services that do not have a way out, whatever `network` is."""
    container: ContainerOptions = Field(default_factory=lambda: NO_OPTIONS)
    """Options of the sandbox itself. Needs the capability `services`. Their entrypoint and command
    apply to `entrypoint = "image"`."""

    def door(self, name: str) -> Door | None:
        """Return the door of this name, if there is one."""
        return next((door for door in self.doors if door.name == name), None)

    @property
    def served_doors(self) -> tuple[Door, ...]:
        """The doors that the provider serves inside."""
        return tuple(door for door in self.doors if door.path is None)

    def outside_hosts(self, path: OutsidePath) -> tuple[str, ...]:
        """Return the hosts of the doors with this path."""
        hosts = (door.endpoint.host for door in self.doors if door.path == path)
        return tuple(dict.fromkeys(hosts))

    def door_paths(self, served: DoorPath) -> Mapping[str, DoorPath]:
        """Return how each door leads out, by name; `served` is that of the served doors."""
        return {door.name: door.path or served for door in self.doors}

    def with_door(self, door: Door) -> "SandboxSpec":
        """Return the spec with `door` in place of the door of the same name."""
        others = tuple(other for other in self.doors if other.name != door.name)
        return self.model_copy(update={"doors": (door, *others)})


class SandboxCapabilities(Model):
    """What the provider can do on this machine, as real probes have shown it."""

    isolation: Isolation
    snapshot_levels: frozenset[SnapshotLevel] = frozenset()
    network_modes: frozenset[NetworkMode] = frozenset()
    resource_limits: frozenset[ResourceKind] = frozenset()
    users: bool = False
    """Whether a process can run as another user than the default one."""
    freeze: FreezeLevel = "none"
    snapshot_consistency: SnapshotConsistency | None = None
    """The consistency of `filesystem` snapshots outside a kernel freeze; `None` without snapshots.
    Forks by files need `instant`. A `live` snapshot is always `instant`."""
    spawn: bool = True
    """Whether `Sandbox.spawn` works. ACP agents and the services of a manifest need it."""
    kill_all: bool = False
    """Whether sandboxes satisfy `SupportsKillAll`. Grading needs a freeze or this."""
    network_switch: bool = False
    """Whether sandboxes satisfy `SupportsNetworkSwitch`."""
    builds: bool = False
    """Whether images can be built from a `recipe`."""
    services: bool = False
    """Whether a sandbox can have services."""
    doors: DoorPath | None = None
    """How doors lead out; `None`: a sandbox cannot have doors."""
    outside_paths: frozenset[OutsidePath] = frozenset()
    """What a sandbox can do for doors that are not served inside. `egress`: the provider adds the
    door's headers outside. `token`: `model-only` allows the host of the door, and no other."""
    egress_networks: frozenset[NetworkMode] = frozenset({"model-only", "allowlist", "public"})
    """The networks in which the path `egress` of `outside_paths` works."""
    live_engine: str | None = None
    """The engine of `live` snapshots, such as `criu` or `runsc`; `None` without that level."""
    notes: Mapping[str, str] = {}
    """Reasons why a capability is missing, by its name, with the remedy."""


class SandboxImage(Model):
    """A sealed snapshot. Any number of sandboxes may be created from it."""

    provider: str
    level: SnapshotLevel
    consistency: SnapshotConsistency
    """A snapshot that was taken inside a kernel freeze is always `instant`."""
    ref: str
    digest: str
    bytes: int = Field(ge=0)
    took_sec: Mapping[str, float] = {}
    """Seconds that the provider measured: `frozen`, while the sandbox was paused, and `dump`, while
    its processes were written and, if the dump ended them, restored."""


class ExecResult(Model):
    """One finished command. Output is decoded as UTF-8 with replacement."""

    exit_code: int
    """The exit code as a shell reports it: 128 + n if signal n ended the process."""
    stdout: str
    stderr: str
    stdout_dropped: int = Field(default=0, ge=0)
    """Number of bytes beyond `ResourceLimits.output_bytes`, which are discarded."""
    stderr_dropped: int = Field(default=0, ge=0)
    duration_sec: float = Field(ge=0)

    @property
    def ok(self) -> bool:
        """Whether the command ended with exit code 0."""
        return self.exit_code == 0


@runtime_checkable
class Sandbox(Protocol):
    """One isolated machine.

    `cmd` is an argument vector, or a string that the sandbox's shell runs with `-c`. `user=None`
    means `spec.user`, and `cwd=None` means `spec.workdir`. `env` is added to `spec.env`. All paths
    inside are absolute.
    """

    @property
    def id(self) -> str:
        """Unique on the machine. `restore` does not change it."""
        ...

    @property
    def spec(self) -> SandboxSpec:
        """The spec of its creation, with the image's own user and workdir filled in."""
        ...

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command to its end.

        A non-zero exit code is a result, not an error. After `timeout` seconds, and on
        cancellation, the process group is killed before this returns.

        Raises:
            SandboxTimeoutError: The time ran out.
            SandboxFrozenError: The caller is inside `freeze()`.
            SandboxError: The sandbox is gone, or the command cannot be started.
        """
        ...

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a command with live pipes, as the leader of a new process group."""
        ...

    async def attach(self, process_id: str) -> Process:
        """Attach to a spawned process that is part of a live image. Possible once per process.

        This sandbox has its own copies of the pipes. They first give the output that was unread
        when the image was taken. A process that had ended by then is in the image only if another
        process inside still has its pipes.

        Raises:
            SandboxUnsupportedError: The provider does not support live snapshots.
            SandboxError: The image does not have this process, or it is attached already.
        """
        ...

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`.

        The contents of a directory are merged into `remote`. Missing parents are created. A link,
        device, socket or pipe in `local` is refused. Links on the way to `remote` never lead out
        of the sandbox.

        Raises:
            TransferError: An entry was refused, or the copy failed.
        """
        ...

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path.

        Nothing inside is trusted. Links are not followed. Links, devices, sockets and pipes are
        refused. The number of entries and the total size are limited. With `leave_out`, entries
        below a directory `remote` that are refused for their kind (not for their size) are left
        out, and the others are copied.

        Raises:
            TransferError: An entry was refused or is missing, or the size is over `max_bytes`.
        """
        ...

    async def expose_port(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host, and return its address."""
        ...

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Pause every process of the sandbox inside this block.

        Within the block, no process of the sandbox executes an instruction, and `download` and
        `snapshot` work. Blocks may be nested. The end of the outermost block resumes the processes,
        also after an error.
        """
        ...

    async def snapshot(
        self,
        level: SnapshotLevel = "filesystem",
        *,
        while_frozen: Callable[[], Awaitable[None]] | None = None,
    ) -> SandboxImage:
        """Take a snapshot of the current state. The sandbox continues unharmed.

        The state is of one instant, unless `SandboxImage.consistency` says otherwise.

        Inside `freeze()`, the state is that of the freeze. `while_frozen` is awaited once, as if
        inside such a block, so its reads see the state of the snapshot. If it raises, the
        caller gets its error and no snapshot is made. Pass your reads as `while_frozen` rather
        than wrapping this call in `freeze()`: the sandbox is then paused for a shorter time.

        A `live` image contains every process, its memory, its connections within the sandbox and
        its unread output. `Process` objects of this sandbox, their pipes and the endpoints stay
        valid. A connection through a door ends.

        Raises:
            SandboxUnsupportedError: The level is not in `capabilities()`.
            SnapshotError: It failed, and nothing is left behind. `retryable` if a process had not
                read its input yet, or was inside an operation that no image can contain.
            SandboxLimitError: The written files are larger than a snapshot may be.
            HostError: The host does not have room for the snapshot.
        """
        ...

    async def restore(self, image: SandboxImage) -> None:
        """Restore `image`. All processes end. `id`, spec and endpoints stay the same."""
        ...

    async def teardown(self) -> None:
        """End every process and delete everything. Idempotent. A repeated call does not raise."""
        ...


@runtime_checkable
class SupportsTcpConnect(Protocol):
    """A sandbox whose loopback the host can reach without a permanent address."""

    async def connect_tcp(self, port: int) -> socket.socket:
        """Return a non-blocking connection to a port of the loopback inside.

        The caller closes the connection, at the latest before a snapshot.

        Raises:
            OSError: No process listens at the port.
            SandboxError: The sandbox is gone.
        """
        ...


@runtime_checkable
class SupportsFileDigests(Protocol):
    """A sandbox whose files the host can read in place while the sandbox runs."""

    async def file_digests(
        self, paths: Sequence[str], *, max_bytes: int = 1 << 30
    ) -> Mapping[str, str]:
        """Return the SHA-256, in hex, of each regular file of `paths` that exists.

        The digests are of one state: no file was written, created or removed during the call.
        Nothing inside is run or paused. Links are refused, as by `download`.

        Raises:
            TransferError: A path was refused, the sum is over `max_bytes`, or a file changed.
            SandboxUnsupportedError: The host cannot read the files of this sandbox in place.
        """
        ...


@runtime_checkable
class HasDoors(Protocol):
    """A sandbox that says how its doors lead out."""

    @property
    def door_paths(self) -> Mapping[str, DoorPath]:
        """How each door of the spec leads out, by name. The record of the rollout contains it."""
        ...


@runtime_checkable
class SupportsEntrypoint(Protocol):
    """A sandbox whose image entrypoint the caller can start at any time."""

    async def start_image_entrypoint(self) -> bool:
        """Start the image's own entrypoint, as `SandboxSpec.entrypoint = "image"` does.

        Wait until the entrypoint has done its work, and the image's HEALTHCHECK succeeds, if there
        is one. Return whether the image has an entrypoint.

        Raises:
            SandboxError: The entrypoint did not start, ended, or never became healthy.
        """
        ...


@runtime_checkable
class SupportsKillAll(Protocol):
    """A sandbox that can end all its processes and stay usable.

    Grading of a sandbox without a freeze begins with this call.
    """

    async def kill_all(self) -> None:
        """Kill every process inside except the provider's own. All are dead on return.

        Files do not change. `exec`, `upload` and `download` work afterwards.

        Raises:
            SandboxUnsupportedError: A process could escape.
            SandboxError: The sandbox is gone.
        """
        ...


@runtime_checkable
class HasImageDigests(Protocol):
    """A sandbox that knows the digests of its images."""

    @property
    def image_digests(self) -> Mapping[str, str]:
        """The images of the sandbox, named `main`, and of its services.

        Each is `NAME@sha256:HEX` if a registry has the image, or else `sha256:HEX`, the provider's
        own name of the bytes. An image without such a name is left out.
        """
        ...


class SandboxProvider(Protocol):
    """Creates sandboxes. An entry point of the group `benchflow.sandboxes`."""

    @property
    def name(self) -> str:
        """The registry name."""
        ...

    async def ready(self) -> None:
        """Check that sandboxes can be created, so that a run fails early.

        A job calls this once, so it is quick: it does not create a sandbox or run a probe, and
        `create` may still refuse a spec. Idempotent.

        Raises:
            SandboxError: Sandboxes cannot be created on this machine.
        """
        ...

    async def capabilities(self) -> SandboxCapabilities:
        """Detect capabilities by running real probes. May take several seconds.

        The result is cached for the life of the provider. Concurrent callers share one probe.
        """
        ...

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> Sandbox:
        """Start a sandbox, from the spec or from a snapshot. The sandbox is ready on return.

        `sandboxes()` lists it with its `identity`.

        In a sandbox of a `live` image, every process continues from the instant of the snapshot,
        with its own memory, files and network. `spec.doors` may name other upstreams than the
        image's sandbox had, at the same ports.

        Raises:
            SandboxUnsupportedError: The machine or the provider does not support the spec.
            SandboxError: The sandbox did not start, and nothing is left behind.
        """
        ...

    def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield every sandbox of this provider that can be found here, also of dead owners.

        With `scope`, yield only sandboxes whose identity has this scope.
        """
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Sandboxes that were created from it continue. Idempotent."""
        ...

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to `to`, a new host directory that outlives this provider.

        Raises:
            SandboxUnsupportedError: This provider does not save snapshots.
            SnapshotError: The snapshot is unknown, or cannot be written. `to` does not exist then.
        """
        ...

    async def load(self, saved: Path) -> SandboxImage:
        """Load a snapshot that `save` wrote, here or in an earlier process on this machine.

        `saved` is not changed, and is not needed afterwards.

        Raises:
            SnapshotError: It is incomplete, of another provider, or its digest differs.
        """
        ...

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove left-over sandboxes. Return those that were removed, or would be by a dry run.

        Raises:
            SandboxUnsupportedError: `policy.overdue` selects a sandbox of a living or unknown
                owner, and this provider cannot remove it from here.
        """
        ...

    async def aclose(self) -> None:
        """Tear down every sandbox and snapshot of this instance. Idempotent."""
        ...
