"""The calls of a cloud's SDK that remote sandboxes need."""

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.host_ports import guest_ports
from benchflow_sandbox_native import link_path

from .records import TOKEN_SIZE
from .transport import PROGRAM, Transport

_TOKEN_FILE = "/.benchflow/token"  # noqa: S105 - a path


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


@dataclass(frozen=True, slots=True)
class CloudRecord:
    """One sandbox in the list of a cloud."""

    id: str
    labels: Mapping[str, str]
    created_at: float
    """Seconds since the epoch."""


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


async def start_link(cloud: CloudSandbox, spec: SandboxSpec) -> bytes:
    """Put the link into a sandbox and start it; return the token of its session.

    Raises:
        SandboxError: The link did not start.
    """
    token = secrets.token_bytes(TOKEN_SIZE)
    ports = ",".join(str(port) for port in guest_ports(spec)) or "0"
    await cloud.put(PROGRAM, link_path().read_bytes(), 0o755)
    await cloud.put(_TOKEN_FILE, token, 0o600)
    await cloud.run([PROGRAM, "serve", ports])
    return token
