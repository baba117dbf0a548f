"""The subject of the checks of a sandbox provider."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.errors import TransferError
from benchflow_contracts.sandbox import (
    NetworkMode,
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxProvider,
    SandboxSpec,
    SnapshotLevel,
)

from .check import Check, CheckFailedError, expect, expect_equal

TICKER = "while :; do echo x >> ticks; sleep 0.02; done"
"""Grows the file `ticks` in its working directory for as long as it runs.

Where `sleep` takes whole seconds only it fails at once, and the loop just spins.
"""

PATIENCE_SEC = 15.0
"""The seconds to wait for an expected event."""

STILL_SEC = 0.3
"""The seconds to watch for an event that must not happen."""


@dataclass(frozen=True, slots=True)
class SandboxSubject:
    """A provider under test, and its capabilities.

    Commands use paths relative to the working directory, so that a provider which
    only maps paths can be tested too.
    """

    provider: SandboxProvider
    capabilities: SandboxCapabilities
    spec: SandboxSpec
    scratch: Path
    """A private host directory."""
    base: str | None = None
    """An image with a shell, for recipes and services."""

    def spec_with(self, **changes: object) -> SandboxSpec:
        """Return the spec with some changed fields, after validation."""
        return SandboxSpec.model_validate({**dict(self.spec), **changes})

    @asynccontextmanager
    async def open_sandbox(
        self,
        *,
        spec: SandboxSpec | None = None,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> AsyncGenerator[Sandbox, None]:
        """Create a sandbox, and tear it down at the end."""
        sandbox = await self.provider.create(spec or self.spec, image=image, identity=identity)
        try:
            yield sandbox
        finally:
            await sandbox.teardown()

    @asynccontextmanager
    async def sealed(
        self, sandbox: Sandbox, level: SnapshotLevel = "filesystem"
    ) -> AsyncGenerator[SandboxImage, None]:
        """Snapshot `sandbox`, and discard the snapshot at the end."""
        image = await sandbox.snapshot(level)
        try:
            yield image
        finally:
            await self.provider.discard(image)

    def inside(self, name: str) -> str:
        """Return the absolute path of `name` in the working directory."""
        return f"{self.spec.workdir}/{name}"

    def fresh(self) -> Path:
        """Return a host path that does not exist."""
        return self.scratch / uuid4().hex

    def folder(self) -> Path:
        """Return a new, empty host directory."""
        path = self.fresh()
        path.mkdir()
        return path

    def file(self, content: bytes) -> Path:
        """Return a new host file."""
        path = self.fresh()
        path.write_bytes(content)
        return path

    async def put(self, sandbox: Sandbox, name: str, content: bytes) -> None:
        """Write a file of the default user into the working directory."""
        await sandbox.upload(self.file(content), self.inside(name), user=self.spec.user)

    async def get(self, sandbox: Sandbox, name: str) -> bytes:
        """Read a file of the working directory."""
        local = self.fresh()
        await sandbox.download(self.inside(name), local)
        return local.read_bytes()

    async def output(self, sandbox: Sandbox, cmd: str) -> str:
        """Run shell text that must succeed and return its stdout."""
        result = await sandbox.exec(cmd)
        expect_equal(result.exit_code, 0, f"the exit code of {cmd!r} ({result.stderr!r})")
        return result.stdout

    async def tick(self, sandbox: Sandbox, cmd: str = TICKER) -> None:
        """Start the TICKER in the background, and wait until it ticks."""
        await sandbox.exec(f"({cmd}) >/dev/null 2>&1 &")
        await self.wait_for_tick(sandbox)

    async def ticks(self, sandbox: Sandbox) -> int:
        """Return the number of ticks; 0 before the first tick."""
        try:
            return len(await self.get(sandbox, "ticks"))
        except TransferError:
            return 0

    async def wait_for_tick(self, sandbox: Sandbox) -> int:
        """Wait until the ticker makes another tick; return the number of ticks."""
        start = await self.ticks(sandbox)

        async def grown() -> bool:
            return await self.ticks(sandbox) > start

        await until(grown, "the process inside does not go on")
        return await self.ticks(sandbox)

    async def expect_no_tick(self, sandbox: Sandbox, why: str) -> None:
        """Fail if the ticker makes a tick within `STILL_SEC`."""
        before = await self.ticks(sandbox)
        expect(before > 0, "the process inside never ran, so nothing is proven")
        await asyncio.sleep(STILL_SEC)
        expect_equal(await self.ticks(sandbox), before, f"the progress of a process {why}")


SandboxCheck = Check[SandboxSubject]


async def until(condition: Callable[[], Awaitable[bool]], failure: str) -> None:
    """Poll until `condition` is true. Fail with `failure` after `PATIENCE_SEC`."""
    deadline = time.monotonic() + PATIENCE_SEC
    while not await condition():
        if time.monotonic() > deadline:
            raise CheckFailedError(failure)
        await asyncio.sleep(0.02)


def lacks_users(subject: SandboxSubject) -> str | None:
    """Return the reason if processes cannot run as another user."""
    return None if subject.capabilities.users else "capabilities: no other users"


def lacks_spawn(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider does not have `spawn`."""
    return None if subject.capabilities.spawn else "capabilities: no spawn"


def lacks_freeze(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider cannot freeze."""
    return "capabilities: no freeze" if subject.capabilities.freeze == "none" else None


def lacks_kernel_freeze(subject: SandboxSubject) -> str | None:
    """Return the reason if the host's kernel does not freeze the processes."""
    freeze = subject.capabilities.freeze
    return None if freeze == "kernel" else f"capabilities: freeze {freeze}"


def lacks_instant_snapshots(subject: SandboxSubject) -> str | None:
    """Return the reason if filesystem snapshots are not of one instant."""
    consistency = subject.capabilities.snapshot_consistency
    return None if consistency == "instant" else f"capabilities: snapshots {consistency}"


def lacks_kill_all(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider does not have `kill_all`."""
    return None if subject.capabilities.kill_all else "capabilities: no kill_all"


def lacks_snapshots(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider does not have filesystem snapshots."""
    levels = subject.capabilities.snapshot_levels
    return None if "filesystem" in levels else "capabilities: no filesystem snapshots"


def lacks_live_snapshots(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider does not have live snapshots."""
    levels = subject.capabilities.snapshot_levels
    return None if "live" in levels else "capabilities: no live snapshots"


def lacks_network(subject: SandboxSubject, mode: NetworkMode) -> str | None:
    """Return the reason if the provider does not have the network mode."""
    known = mode in subject.capabilities.network_modes
    return None if known else f"capabilities: no network mode {mode}"


def lacks_base(subject: SandboxSubject) -> str | None:
    """Return the reason if the caller did not give a base image."""
    return None if subject.base else "no base: name an image with a shell and python3 to test with"


def lacks_builds(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider does not build, or without a base image."""
    return lacks_base(subject) if subject.capabilities.builds else "capabilities: no builds"


def lacks_services(subject: SandboxSubject) -> str | None:
    """Return the reason if the provider does not have services, or without a base image."""
    return lacks_base(subject) if subject.capabilities.services else "capabilities: no services"


def routes(table: str) -> set[str]:
    """Return the devices with a route, from the text of /proc/net/route."""
    return {line.split()[0] for line in table.splitlines()[1:] if line.split()}


def free_port() -> int:
    """Return a free port of the host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
