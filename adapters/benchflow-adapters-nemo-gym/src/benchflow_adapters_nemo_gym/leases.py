"""Sandboxes by reference: what a consumer asks for, and what it gets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from benchflow_contracts import Endpoint, ExecResult, Model, RolloutIdentity, SandboxSpec
from pydantic import Field

MAX_FILE_BYTES = 1 << 30
"""The largest file that one call copies, unless the caller sets another limit."""

SandboxState = Literal["running", "stopped", "error"]


class LeaseRequest(Model):
    """A sandbox for a rollout. The same `name` of the same rollout gives the same sandbox."""

    spec: SandboxSpec
    identity: RolloutIdentity
    """Its `rollout` is the key of the lease. Its `deadline` ends the sandbox, whatever runs."""
    name: str = Field(default="main", min_length=1, max_length=128)
    idle_sec: float | None = Field(default=None, gt=0)
    """The lease of the rollout ends when no call was made for this time (default and maximum: of
    the broker). A call that runs keeps the lease."""
    ready_timeout_sec: float | None = Field(default=None, gt=0)
    """The limit for the start of the sandbox (default: of the provider)."""


class SandboxLease(Model):
    """A sandbox that a rollout holds. JSON, so another process may use the sandbox by `ref`."""

    ref: str
    """The reference of each call. Random: a process that does not have it cannot guess it."""
    sandbox: str
    """The id of the sandbox at its provider."""
    rollout: str
    name: str
    workdir: str
    user: str
    expires_at: float | None
    """The earliest end in seconds since the epoch, unless calls renew the lease."""


class CommandRequest(Model):
    """One command, as for `Sandbox.exec`."""

    cmd: str | tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = {}
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | None = None


class SandboxService(Protocol):
    """Sandboxes by reference, in this process or behind HTTP.

    Each call renews the lease of its rollout.

    Raises:
        SandboxLostError: The reference is unknown: the sandbox was released, or its lease ended.
        SandboxError: The provider failed, as its contract says.
    """

    async def acquire(self, request: LeaseRequest) -> SandboxLease:
        """Start the sandbox, or return the lease of an earlier request of this rollout and name.

        Raises:
            CapacityError: The broker has as many sandboxes as it may have.
        """
        ...

    async def exec(self, ref: str, request: CommandRequest) -> ExecResult:
        """Run a command to its end."""
        ...

    async def upload(self, ref: str, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy one regular file in, owned by `user` (default: the user of the sandbox)."""
        ...

    async def download(
        self, ref: str, remote: str, local: Path, *, max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """Copy one regular file out to `local`, which is replaced if it exists."""
        ...

    async def status(self, ref: str) -> SandboxState:
        """Return whether a command can run. An unknown reference is `stopped`."""
        ...

    async def endpoint(self, ref: str, port: int) -> Endpoint:
        """Return the address at which the host of the sandbox reaches a port of the spec."""
        ...

    async def lease(self, ref: str) -> SandboxLease:
        """Renew the lease and return it. A consumer that was restarted reconnects by this."""
        ...

    async def release(self, ref: str) -> None:
        """Delete the sandbox. Idempotent: an unknown reference has no effect."""
        ...

    async def release_rollout(self, rollout: str) -> None:
        """Delete all sandboxes of a rollout. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Close what this object owns. Idempotent."""
        ...
