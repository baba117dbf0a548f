"""Modal's snapshots of memory over live snapshots of local sandboxes.

Modal documents these limits, and the server has them: an account must have been enabled; a snapshot
ends its sandbox, whose TCP connections are closed; it is refused while a command of `exec` runs or
with a GPU; it ends seven days after its creation, and one of a restored sandbox ends with the first
one; processes that `exec` started in the background are not restored.
"""

import os
import secrets
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import Sandbox, SandboxImage, SandboxProvider, SandboxSpec
from grpclib.const import Status
from modal_proto import api_pb2 as pb

from .grpc_service import Refusal
from .stopped_processes import live_snapshot

EXEC_MARK = "BENCHFLOW_MODAL_EXEC"
"""A variable of the commands of `exec`, by which the server knows their processes."""
LIFETIME = 7 * 24 * 3600.0
_NAMES = pb.SandboxRestoreRequest.SandboxNameOverrideType


@runtime_checkable
class _HasGroup(Protocol):
    @property
    def group(self) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True)
class MemorySnapshot:
    """One snapshot of memory."""

    image: SandboxImage
    spec: SandboxSpec
    definition: pb.Sandbox
    app: str
    entry: str | None
    """The id of the first process."""
    expires_at: float


class MemorySnapshots:
    """The snapshots of memory of an account."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self.every: dict[str, MemorySnapshot] = {}

    def find(self, name: str) -> MemorySnapshot:
        """Return a snapshot that has not expired.

        Raises:
            Refusal: NOT_FOUND.
        """
        found = self.every.get(name)
        if found is None or found.expires_at < time.time():
            raise Refusal(Status.NOT_FOUND, f"no snapshot {name}")
        return found

    async def take(self, made: Any) -> str:  # noqa: ANN401 - a `HostedSandbox`
        """Take a snapshot of a sandbox; return its id.

        Raises:
            Refusal: The sandbox has no snapshots of memory, or a command runs.
        """
        if not made.definition.enable_snapshot:
            raise Refusal(Status.FAILED_PRECONDITION, "the sandbox has no snapshots of memory")
        if any(command.code is None for command in made.task.execs.values()):
            raise Refusal(Status.FAILED_PRECONDITION, "a command of exec is still running")
        await made.task.forget()
        image = await _live_image(made.sandbox)
        entry = None if made.entry is None else made.entry.id
        name = f"sn-{secrets.token_hex(11)}"
        expires_at = made.expires_at or time.time() + LIFETIME
        self.every[name] = MemorySnapshot(
            image, made.sandbox.spec, made.definition, made.app, entry, expires_at
        )
        return name

    async def restore(self, snapshot: MemorySnapshot) -> tuple[Sandbox, Process | None]:
        """Create a sandbox from a snapshot; return it and its first process."""
        sandbox = await self._provider.create(snapshot.spec, image=snapshot.image)
        if isinstance(sandbox, _HasGroup):
            for pid in sandbox.group.members():
                if _is_of_exec(pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        entry = None if snapshot.entry is None else await sandbox.attach(snapshot.entry)
        return sandbox, entry

    async def aclose(self) -> None:
        """Delete every snapshot."""
        while self.every:
            _, snapshot = self.every.popitem()
            await self._provider.discard(snapshot.image)


def name_of(request: Any, snapshot: MemorySnapshot) -> str:  # noqa: ANN401
    """Return the name of the sandbox of a request to restore a snapshot."""
    if request.sandbox_name_override_type == _NAMES.SANDBOX_NAME_OVERRIDE_TYPE_STRING:
        return str(request.sandbox_name_override)
    kept = request.sandbox_name_override_type == _NAMES.SANDBOX_NAME_OVERRIDE_TYPE_UNSPECIFIED
    return snapshot.definition.name if kept else ""


async def _live_image(sandbox: Sandbox) -> SandboxImage:
    try:
        return await live_snapshot(sandbox)
    except (SandboxError, SnapshotError) as error:
        raise Refusal(Status.INTERNAL, str(error)) from error


def _is_of_exec(pid: int) -> bool:
    with suppress(OSError):
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return any(each.startswith(EXEC_MARK.encode()) for each in environment.split(b"\0"))
    return False
