"""The Sandbox plane: where a rollout runs."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field

from ._model import Model
from .bundle import Bundle
from .container import ContainerOptions
from .door import Door, DoorPath, Endpoint
from .identity import RolloutIdentity
from .image import ImageRecipe
from .limits import ResourceKind, ResourceLimits
from .process import Process
from .sandbox_record import ReapPolicy, SandboxRecord
from .service import ServiceSpec

SnapshotLevel = Literal["filesystem", "live"]
"""`filesystem` carries files; `live` carries files, processes and sockets."""

SnapshotConsistency = Literal["instant", "crash_consistent"]
"""`instant`: the files of one instant, at which no process ran. `crash_consistent`: the files as a
power cut leaves them, so a process may have been between two writes."""

FreezeLevel = Literal["kernel", "guest", "none"]
"""`kernel`: the host stops every process. `guest`: a program inside stops all other processes, and
a process with its rights can undo that. `none`: nothing stops the processes."""

Isolation = Literal["none", "namespaces", "container", "vm"]
NetworkMode = Literal["none", "model-only", "allowlist", "public"]


class SandboxSpec(Model):
    """What a sandbox is made of."""

    image: str | None = None
    """A provider-specific reference. `None` or `host` is the provider's default."""
    recipe: ImageRecipe | None = None
    """The image is made from this instead. Needs `image=None` and `builds`."""
    image_search: tuple[str, ...] = ()
    """Host directories in which `image` is looked up by name before any registry."""
    workdir: str = "/workspace"
    """Created when missing, owned by `user`; the default cwd of `exec` and `spawn`.

    `""` is the image's own working directory, which `Sandbox.spec` then names.
    """
    user: str = "agent"
    """The default user of `exec` and `spawn`: a name, made when missing; or a number.

    `""` is the image's own user, root where it has none; `Sandbox.spec` then names it.
    """
    env: Mapping[str, str] = {}
    """Set for every process, including the image's entrypoint."""
    entrypoint: tuple[str, ...] | Literal["image"] | None = None
    """Run once after start, when the image has services of its own: as root; or `image`, its
    own entrypoint as its own user, with `sh -c "sleep infinity"` as the arguments."""
    bundles: tuple[Bundle, ...] = ()
    network: NetworkMode = "none"
    allowed_hosts: tuple[str, ...] = ()
    """For `allowlist`: names, `*.example.org`, addresses and CIDR blocks, without ports."""
    switches: tuple[NetworkMode, ...] = ()
    """All that `network` may become while it runs, by `SupportsNetworkSwitch.switch_network`."""
    doors: tuple[Door, ...] = ()
    """Needs another network than `none`, among `switches` too. Names and ports are unique."""
    ports: tuple[int, ...] = ()
    limits: ResourceLimits = ResourceLimits()
    services: tuple[ServiceSpec, ...] = ()
    """Containers beside it, which reach it as `main`. They are started with it and end with it;
    a freeze does not hold them, no snapshot has them, and `restore` leaves them as they are.
    Needs the capability `services`."""
    inner_networks: frozenset[str] = frozenset()
    """Those of the services' networks that nothing leads out of, whatever `network` says."""
    container: ContainerOptions = ContainerOptions()
    """Of the sandbox itself, beside services. Its entrypoint and command are for
    `entrypoint = "image"`."""

    def door(self, name: str) -> Door | None:
        """Return the door of that name."""
        return next((door for door in self.doors if door.name == name), None)

    def with_door(self, door: Door) -> "SandboxSpec":
        """Return the spec with `door` in place of the door of that name."""
        others = tuple(other for other in self.doors if other.name != door.name)
        return self.model_copy(update={"doors": (door, *others)})


class SandboxCapabilities(Model):
    """What this provider can do on this machine: probed, never assumed."""

    isolation: Isolation
    snapshot_levels: frozenset[SnapshotLevel] = frozenset()
    network_modes: frozenset[NetworkMode] = frozenset()
    resource_limits: frozenset[ResourceKind] = frozenset()
    users: bool = False
    """Whether a process can run as another user than the default one."""
    freeze: FreezeLevel = "none"
    snapshot_consistency: SnapshotConsistency | None = None
    """Of `filesystem` snapshots that are not taken inside a kernel freeze; `None` without them.
    Forks by files need `instant`. A `live` snapshot is always `instant`."""
    spawn: bool = True
    """Whether `Sandbox.spawn` works. ACP agents need it."""
    kill_all: bool = False
    """Whether `SupportsKillAll` holds here. Grading needs a freeze or this."""
    network_switch: bool = False
    """Whether `SupportsNetworkSwitch` holds here."""
    builds: bool = False
    """Whether images can be made from a `recipe`."""
    services: bool = False
    """Whether a sandbox can have services."""
    doors: DoorPath | None = None
    """How doors lead out; `None`: a sandbox cannot have doors."""
    live_engine: str | None = None
    """What takes `live` snapshots, such as `criu` or `runsc`; `None` without that level."""
    notes: Mapping[str, str] = {}
    """What is missing, by capability, each with its remedy."""


class SandboxImage(Model):
    """A sealed snapshot. Any number of sandboxes may be created from it."""

    provider: str
    level: SnapshotLevel
    consistency: SnapshotConsistency
    """`instant` also for each snapshot that was taken inside a kernel freeze."""
    ref: str
    digest: str
    bytes: int = Field(ge=0)
    took_sec: Mapping[str, float] = {}
    """Seconds of the parts of the snapshot that the provider measured: `frozen`, while the sandbox
    stood still, and `dump`, while its processes were written and, if that ended them, restored."""


class ExecResult(Model):
    """One finished command. Output is decoded as UTF-8 with replacement."""

    exit_code: int
    """As the shell reports it: 128 + n for a process that signal n ended."""
    stdout: str
    stderr: str
    stdout_dropped: int = Field(default=0, ge=0)
    """Bytes beyond `ResourceLimits.output_bytes` that were counted, not kept."""
    stderr_dropped: int = Field(default=0, ge=0)
    duration_sec: float = Field(ge=0)

    @property
    def ok(self) -> bool:
        """Whether the command ended with exit code 0."""
        return self.exit_code == 0


@runtime_checkable
class Sandbox(Protocol):
    """One isolated machine.

    `cmd` is an argument vector, or a string that the sandbox's shell runs with
    `-c`. `user=None` means `spec.user`; `cwd=None` means `spec.workdir`. `env` is
    added to the spec's. All paths inside are absolute.
    """

    @property
    def id(self) -> str:
        """Unique on the machine, kept over `restore`."""
        ...

    @property
    def spec(self) -> SandboxSpec:
        """What it was created from, with the image's own user and workdir filled in."""
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

        A non-zero exit is a result, not an error. On `timeout` (seconds) or on
        cancellation the process group is killed before this returns.

        Raises:
            SandboxTimeoutError: The time ran out.
            SandboxFrozenError: The calling task holds `freeze()`.
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
        """Start a command with live pipes in a process group of its own."""
        ...

    async def attach(self, process_id: str) -> Process:
        """Attach to a spawned process that came with a live image. Possible once per process.

        Its pipes are this sandbox's own. Output that nobody had read when the image was
        taken comes first. A process that had ended by then is not carried,
        unless another process inside still has its pipes.

        Raises:
            SandboxUnsupportedError: This provider has no live snapshots.
            SandboxError: No process with this id came with the image, or it is attached already.
        """
        ...

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`.

        A directory's contents are merged into `remote`; parents are made. A link,
        device, socket or pipe in `local` is refused. Links on the way to `remote`
        are never followed out of the sandbox.

        Raises:
            TransferError: Something was refused or broke.
        """
        ...

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path.

        Nothing inside is trusted or run: links are not followed and are refused,
        as are devices, sockets and pipes; entry count and total size are capped.
        With `leave_out`, what is refused below a directory `remote` for what it is (not for
        its size) is left out, and the rest is copied.

        Raises:
            TransferError: Refused, missing, or over `max_bytes`.
        """
        ...

    async def expose_port(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host's loopback."""
        ...

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Pause every process inside this block.

        While it is held, no process inside runs an instruction; `download` and
        `snapshot` work. Re-entrant. Thaws on exit, also on error.
        """
        ...

    async def snapshot(
        self,
        level: SnapshotLevel = "filesystem",
        *,
        while_frozen: Callable[[], Awaitable[None]] | None = None,
    ) -> SandboxImage:
        """Seal the current state. The sandbox continues unharmed.

        The state is of one instant, unless `SandboxImage.consistency` says otherwise.

        May be called while the caller holds `freeze()`; the state is then that of the
        freeze. `while_frozen` is awaited once, as if within such a block: what it reads is of the
        instant that is sealed; what it raises passes through, and then nothing is sealed.
        Pass your reads as `while_frozen` rather than wrapping this call in `freeze()`: the sandbox
        is then paused for a shorter time.

        A `live` image carries every process, its memory, its connections within the
        sandbox and what nobody had read of its output. Processes held here, their pipes
        and the endpoints stay valid. A connection through a door ends.

        Raises:
            SandboxUnsupportedError: The level is not in `capabilities()`.
            SnapshotError: It failed; nothing is left behind. `retryable` when a process
                had not read its input yet, or was busy with what cannot be carried.
            SandboxLimitError: What was written inside is more than a snapshot may hold.
            HostError: The host has no room for it.
        """
        ...

    async def restore(self, image: SandboxImage) -> None:
        """Restore `image`. All processes end; `id`, spec and endpoints stay."""
        ...

    async def teardown(self) -> None:
        """End every process and remove everything. Idempotent; does not raise late."""
        ...


@runtime_checkable
class SupportsTcpConnect(Protocol):
    """A sandbox whose loopback the host can reach without a permanent address."""

    async def connect_tcp(self, port: int) -> socket.socket:
        """Return a connection to a port of the inside's loopback, not blocking.

        The caller closes it, at the latest before a snapshot.

        Raises:
            OSError: Nobody listens there.
            SandboxError: The sandbox is gone.
        """
        ...


@runtime_checkable
class SupportsFileDigests(Protocol):
    """A sandbox whose files the host can read in place while the sandbox runs."""

    async def file_digests(
        self, paths: Sequence[str], *, max_bytes: int = 1 << 30
    ) -> Mapping[str, str]:
        """Return the SHA-256, in hex, of each regular file of `paths` that is there.

        None of them was written, made or removed from the first look to the last. Nothing
        inside is run or held, and links are refused, as by `download`.

        Raises:
            TransferError: Refused, over `max_bytes` in all, or changed meanwhile.
            SandboxUnsupportedError: This sandbox's files cannot be read like this.
        """
        ...


@runtime_checkable
class HasDoors(Protocol):
    """A sandbox that says how its doors lead out."""

    @property
    def door_paths(self) -> Mapping[str, DoorPath]:
        """How each door of the spec leads out, by name. The rollout's record has it."""
        ...


@runtime_checkable
class SupportsEntrypoint(Protocol):
    """A sandbox whose image entrypoint the caller can start at any time."""

    async def start_image_entrypoint(self) -> bool:
        """Start the image's own entrypoint, as `SandboxSpec.entrypoint = "image"` does.

        Returns when the entrypoint has done its work, and the image's HEALTHCHECK, if there is
        one, succeeds: whether there is an entrypoint.

        Raises:
            SandboxError: It cannot be started, it ended, or it never became healthy.
        """
        ...


@runtime_checkable
class SupportsKillAll(Protocol):
    """What a sandbox can do that ends its processes and stays usable.

    A sandbox that cannot be frozen is graded after this.
    """

    async def kill_all(self) -> None:
        """Kill every process inside but the sandbox's own. All are dead on return.

        Files stay as they are; `exec`, `upload` and `download` work afterwards.

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
        """The images of `main`, which is itself, and of its services, by name.

        Each as `NAME@sha256:HEX` where a registry has it, else as `sha256:HEX`, the
        provider's own name of the bytes. One that has no such name is left out.
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

        Asked once before many rollouts, so it is quick: it makes no sandbox and probes
        nothing, and `create` may still refuse what a spec asks for. Idempotent.

        Raises:
            SandboxError: No sandbox can be made on this machine.
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
        """Start a sandbox, from the spec or from a snapshot; it is ready on return.

        `sandboxes()` lists it with its `identity`.

        From a `live` image every process goes on from the instant of the snapshot, with
        its own memory, files and network. `spec.doors` may name other upstreams
        than the image's sandbox had, at the same ports.

        Raises:
            SandboxUnsupportedError: The spec asks for what the machine cannot do.
            SandboxError: It did not start; nothing is left behind.
        """
        ...

    def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Every sandbox of this provider on this machine, also of dead owners.

        With `scope`, only those whose identity has this scope.
        """
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Sandboxes that were made from it continue. Idempotent."""
        ...

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to `to`, a new host directory that outlives this provider.

        Raises:
            SandboxUnsupportedError: This provider saves no snapshots.
            SnapshotError: It is not known here, or it cannot be written; `to` is gone.
        """
        ...

    async def load(self, saved: Path) -> SandboxImage:
        """Take in what `save` wrote, here or in an earlier process on this machine.

        Nothing in `saved` is changed or needed afterwards.

        Raises:
            SnapshotError: It is torn, not of this provider, or its digest differs.
        """
        ...

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove left-overs; return what was (or would be) removed.

        Raises:
            SandboxUnsupportedError: `policy.overdue` would remove one of a living owner, and
                this provider cannot take it from there.
        """
        ...

    async def aclose(self) -> None:
        """Tear down every sandbox and snapshot of this instance. Idempotent."""
        ...
