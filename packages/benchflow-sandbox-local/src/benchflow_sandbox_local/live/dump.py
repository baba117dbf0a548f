"""One dump by CRIU, and the losses that prevent it."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchflow_contracts.errors import HostError, SnapshotError
from benchflow_sandbox_core.sandbox_process import SandboxProcess

from benchflow_sandbox_local.launcher import Call, Launcher, LauncherError
from benchflow_sandbox_local.running_box import NamespaceRunningBox

from .processes import ImageProcess, LiveState, park, unpark

SocketMakers = list[list[int]]
"""For each process that must make unix sockets as another user: its number inside, the user, the
group, and further groups."""


class LossError(SnapshotError):
    """A child would lose something that the sandbox has. The sandbox continues unharmed.

    If `retryable`, the loss may vanish when the sandbox runs for a moment.
    """


async def inspect(launcher: Launcher, init: int, pids: list[int]) -> SocketMakers:
    """Return the makers of the unix sockets of the frozen processes `pids`.

    Raises:
        LossError: A process has something that the engine does not restore.
        SnapshotError: The processes could not be inspected.
    """
    try:
        answer = await launcher.ask("inspect", pid=init, pids=pids)
    except LauncherError as error:
        raise SnapshotError(f"the sandbox cannot be inspected: {error}") from error
    findings: list[tuple[str, bool, str]] = answer.message["findings"]
    for loss, drains, hint in findings:
        raise LossError(f"a live fork would lose {loss}", hint=hint, retryable=drains)
    makers: SocketMakers = answer.message["makers"]
    return makers


_ENOSPC, _ETIMEDOUT, _EOWNERDEAD = 28, 110, 130


@dataclass(frozen=True, slots=True)
class DumpResult:
    """The result of a dump."""

    state: LiveState
    copied: int | None
    """The size of the new layer with a copy of the files. `None` if nothing was copied: the dump
    has then terminated the sandbox."""


class TransientDumpError(SnapshotError):
    """CRIU failed for a cause that passes."""


_TRANSIENT = (
    # A connection of the host may just have closed.
    "Unix socket",
    # ETOOMANYREFS: CRIU gets the open files of a process in messages. The kernel refuses them
    # while messages of the same user, anywhere on the host, contain more files than this process
    # may open.
    "send_fds failed (-109)",
)


@dataclass(frozen=True, slots=True)
class DumpCall:
    """A request to an engine that has started and waits until its sandbox is frozen."""

    name: str
    """The name of the image."""
    layer: str
    """The name of the layer with a copy of the sandbox's files."""
    mounts: tuple[tuple[str, str], ...]
    """The mounts of host files: sources and targets."""
    call: Call

    async def run(
        self,
        running: NamespaceRunningBox,
        processes: list[SandboxProcess],
        door_ports: tuple[int, ...],
        makers: SocketMakers,
    ) -> DumpResult:
        """Dump the processes of the frozen sandbox; park their pipes.

        If the upper layer is small the sandbox survives; otherwise the dump has terminated it.

        Raises:
            SnapshotError: The dump failed. The sandbox is unchanged, or it is damaged and
                `running` is closed.
        """
        try:
            await park(processes)
            image_processes = tuple(ImageProcess.of(process) for process in processes)
            self.call.send_order(makers=makers)
            answer = await self.call.answer()
        except LauncherError as error:
            unpark(processes)
            if error.errno in {_ETIMEDOUT, _EOWNERDEAD}:
                running.close()
            raise _failure(error) from error
        except BaseException:
            unpark(processes)
            raise
        size, copied = answer.message["bytes"], answer.message["copied"]
        state = LiveState(self.name, size, image_processes, self.mounts, door_ports)
        return DumpResult(state, copied)


@asynccontextmanager
async def start(
    launcher: Launcher, mounts: tuple[tuple[str, str], ...], request: dict[str, Any]
) -> AsyncGenerator[DumpCall]:
    """Start an engine for the block. If the caller does not run it, it leaves no files.

    Raises:
        SnapshotError: The engine does not start.
    """
    name = f"i{secrets.token_hex(4)}"
    async with launcher.call("dump", image=name, **request) as call:
        try:
            try:
                await call.answer()
            except LauncherError as error:
                raise _failure(error) from error
            yield DumpCall(name, request["layer"], mounts, call)
        finally:
            await call.cancel()


def _failure(error: LauncherError) -> SnapshotError | HostError:
    if isinstance(error, HostError):
        return error
    if error.errno == _ENOSPC:
        return SnapshotError(
            f"the sandbox cannot be dumped: no space is left for its image ({error})",
            hint="discard images, raise live_budget_mb, or set live_images to 'disk'",
        )
    message = f"the sandbox cannot be dumped: {error}"
    if error.errno != _ETIMEDOUT and any(text in str(error) for text in _TRANSIENT):
        return TransientDumpError(message, retryable=True)
    return SnapshotError(message)
