"""The calls of a cloud's SDK that remote sandboxes need."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypedDict, TypeVar, runtime_checkable

from benchflow_contracts.errors import HostError
from benchflow_contracts.sandbox import SandboxSpec, SnapshotLevel
from benchflow_sandbox_core.host_ports import guest_ports
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_native import link_path

from .records import TOKEN_SIZE
from .terms import BoxSize
from .transport import PROGRAM, Transport

TOKEN_FILE = "/.benchflow/token"  # noqa: S105 - a path
"""The path of a token for the next start of the link, which deletes the file."""
_CALL_SECONDS = 90.0
T = TypeVar("T")
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of SDKs for an answer that is not one of the API, such as the page of a proxy."""


class CloudSandbox(Protocol):
    """One sandbox of a cloud, as the cloud's SDK offers it. Its commands run as root."""

    @property
    def id(self) -> str:
        """The cloud's own id of the sandbox."""
        ...

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside. Create its directory if it is missing.

        Raises:
            SandboxError: The file could not be written.
        """
        ...

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command to its end.

        Raises:
            SandboxError: The command could not be started, or did not end with 0.
        """
        ...

    async def dial(self) -> Transport:
        """Connect to the link inside, for example by the streams of `bf-link dial`.

        Raises:
            SandboxLostError: The sandbox is gone. No later try is made.
            SandboxError: The cloud does not answer.
        """
        ...

    async def delete(self) -> None:
        """Delete the sandbox. Idempotent.

        Raises:
            SandboxError: The cloud does not answer.
        """
        ...


@runtime_checkable
class HasSize(Protocol):
    """A `CloudSandbox` that knows its size, for its price."""

    @property
    def size(self) -> BoxSize | None:
        """The size that the cloud reports; `None`: that of the spec and of the terms."""
        ...


@runtime_checkable
class HasImage(Protocol):
    """A `CloudSandbox` that knows the image that it was created from."""

    image: ImageConfig
    """The image's own variables, user and working directory. The provider sets that of a snapshot,
    which is the image of the snapshot's sandbox."""
    has_link: bool
    """Whether the link was built into the image, and no process had a chance to change it."""


@runtime_checkable
class SnapshotSandbox(CloudSandbox, Protocol):
    """A sandbox of a cloud with snapshots."""

    async def snapshot(self, level: SnapshotLevel) -> str:
        """Take a snapshot; return its name. `live` has the memory of every process.

        The sandbox continues. Its connections may end.

        Raises:
            SandboxUnsupportedError: The cloud does not take snapshots of this level.
            SandboxError: The cloud did not take it, and nothing is left behind.
        """
        ...


@dataclass(frozen=True, slots=True)
class CloudRecord:
    """One sandbox in the list of a cloud."""

    id: str
    labels: Mapping[str, str]
    created_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class CloudImage:
    """One image in the list of a cloud that BenchFlow built."""

    id: str
    name: str
    used_at: float
    """When it was built, or when the last sandbox started from it: seconds since the epoch."""


class Lease(TypedDict):
    """What a cloud stores with each sandbox."""

    labels: Mapping[str, str]
    lifetime: float


class CreateOptions(Lease):
    """The options of a creation; see `Cloud.create`."""

    key: str


class Cloud(Protocol):
    """An account at a cloud, by the cloud's SDK.

    A call raises `CapacityError` for a limit on the rate or on the number of sandboxes,
    `QuotaError` or `CredentialsError` if a retry does not help, and `HostError` if the cloud does
    not answer.
    """

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> CloudSandbox:
        """Create a sandbox that the cloud deletes after `lifetime` seconds.

        A second call with the same `key` returns the sandbox of the first one, so that a lost
        answer never leaves a second sandbox. `labels` are any strings, and `list` returns them.

        Raises:
            SandboxUnsupportedError: The cloud cannot fulfil the spec.
            SandboxError: See `Cloud`.
        """
        ...

    def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the sandboxes of the account that have this label, of any runner."""
        ...

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now."""
        ...

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close the connections of the SDK. Idempotent."""
        ...


@runtime_checkable
class SupportsConnect(Protocol):
    """A `Cloud` that can check the account before a sandbox is needed."""

    async def connect(self) -> None:
        """Check that the cloud answers and accepts the credentials. Idempotent.

        Raises:
            CredentialsError: They are missing or refused, or lack a right.
            SandboxError: The cloud does not answer.
        """
        ...


@runtime_checkable
class SupportsBuilds(Protocol):
    """A `Cloud` that builds what its sandboxes start from."""

    async def build(self, spec: SandboxSpec) -> None:
        """Build the image of a spec, with its bundles, unless it exists. Called before `create`.

        Raises:
            SandboxUnsupportedError: The cloud cannot build it.
            SandboxError: The build failed.
        """
        ...


@runtime_checkable
class SnapshotCloud(Cloud, Protocol):
    """A cloud with snapshots. Its sandboxes are `SnapshotSandbox`."""

    async def create_from(
        self,
        snapshot: str,
        spec: SandboxSpec,
        *,
        key: str,
        labels: Mapping[str, str],
        lifetime: float,
    ) -> CloudSandbox:
        """Create a sandbox from a snapshot; see `create`.

        The processes of a `live` snapshot continue in it.
        """
        ...

    async def discard(self, snapshot: str) -> None:
        """Delete a snapshot by its name. Idempotent."""
        ...


@runtime_checkable
class ListsImages(SnapshotCloud, Protocol):
    """A cloud that lists the images that BenchFlow built there. `discard` deletes them by id."""

    def images(self) -> AsyncIterator[CloudImage]:
        """Yield the images of the account that BenchFlow built, of any runner."""
        ...


async def answer_of(call: Awaitable[T], doing: str, seconds: float | None = None) -> T:
    """Await a call to a cloud, for at most `seconds` (default: those of a short call).

    Raises:
        HostError: The cloud did not answer in time. A server can keep an SDK waiting without an
            end, by one byte at a time.
    """
    seconds = _CALL_SECONDS if seconds is None else seconds
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise HostError(
            f"the cloud did not answer within {seconds:g} s: {doing}", hint="try again later"
        ) from error


def image_of(cloud: CloudSandbox) -> ImageConfig:
    """Return the configuration of the image of a sandbox, as far as its cloud knows it."""
    return cloud.image if isinstance(cloud, HasImage) else ImageConfig()


def spec_of(cloud: CloudSandbox, spec: SandboxSpec) -> SandboxSpec:
    """Return the spec with the variables, user and workdir of the image where it has none.

    An empty user that the image does not name is root, and an empty workdir is `/`.
    """
    image = image_of(cloud)
    spec = image.fill(spec)
    return spec.model_copy(update={"env": {**image.env, **spec.env}}) if image.env else spec


async def start_link(cloud: CloudSandbox, spec: SandboxSpec) -> bytes:
    """Put the link into a sandbox and start it; return the token of its session.

    Raises:
        SandboxError: The link did not start.
    """
    token = secrets.token_bytes(TOKEN_SIZE)
    ports = ",".join(str(port) for port in guest_ports(spec)) or "0"
    if not (isinstance(cloud, HasImage) and cloud.has_link):
        await cloud.put(PROGRAM, link_path().read_bytes(), 0o755)
    await cloud.put(TOKEN_FILE, token, 0o600)
    await cloud.run([PROGRAM, "serve", ports])
    return token
