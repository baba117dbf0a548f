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

from .processes import CarriedProcess, LiveState, park, unpark

SocketMakers = list[list[int]]
"""Processes of the sandbox, and the user, group and further groups whose unix sockets they made."""


class LossError(SnapshotError):
    """A child would lack something that the sandbox has. The sandbox continues unharmed.

    `retryable` says that the sandbox itself may get rid of it, when it runs for a moment.
    """


async def inspect(launcher: Launcher, init: int, pids: list[int]) -> SocketMakers:
    """Return who made the unix sockets of the frozen processes `pids`.

    Raises:
        LossError: They hold something that the engine does not carry.
        SnapshotError: They could not be inspected.
    """
    try:
        answer = await launcher.ask("inspect", pid=init, pids=pids)
    except LauncherError as error:
        raise SnapshotError(f"the sandbox cannot be inspected: {error}") from error
    findings: list[tuple[str, bool, str]] = answer.message["findings"]
    for what, drains, hint in findings:
        raise LossError(f"a live fork would lose {what}", hint=hint, retryable=drains)
    makers: SocketMakers = answer.message["makers"]
    return makers


_ENOSPC, _ETIMEDOUT, _EOWNERDEAD = 28, 110, 130


@dataclass(frozen=True, slots=True)
class DumpResult:
    """The result of a dump."""

    state: LiveState
    copied: int | None
    """Bytes of the layer with its files; `None` when there is none, and the sandbox has ended."""


class HangUpError(SnapshotError):
    """The host hung up on the sandbox a moment ago, and the sandbox has not noticed yet."""


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

        If the upper layer is small the sandbox keeps running; otherwise the dump has ended it.

        Raises:
            SnapshotError: It failed and the sandbox is unchanged. When the sandbox is damaged,
                the machine is closed.
        """
        try:
            await park(processes)
            carried = tuple(CarriedProcess.of(process) for process in processes)
            self.call.go_on(makers=makers)
            answer = await self.call.answer()
        except LauncherError as error:
            unpark(processes)
            if error.errno in {_ETIMEDOUT, _EOWNERDEAD}:
                running.close()
            raise _failure(error) from error
        except BaseException:
            unpark(processes)
            raise
        state = LiveState(self.name, answer.message["bytes"], carried, self.mounts, door_ports)
        return DumpResult(state, answer.message["copied"])


@asynccontextmanager
async def start(
    launcher: Launcher, mounts: tuple[tuple[str, str], ...], request: dict[str, Any]
) -> AsyncGenerator[DumpCall]:
    """Start an engine. An engine that is not used leaves nothing.

    Raises:
        SnapshotError: It does not start.
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
            await call.give_up()


def _failure(error: LauncherError) -> SnapshotError | HostError:
    if isinstance(error, HostError):
        return error
    if error.errno == _ENOSPC:
        return SnapshotError(
            f"the sandbox cannot be dumped: no space is left for its image ({error})",
            hint="discard images, give them more (live_budget_mb), or let live_images be 'disk'",
        )
    message = f"the sandbox cannot be dumped: {error}"
    if "Unix socket" in str(error) and error.errno != _ETIMEDOUT:
        return HangUpError(message, retryable=True)
    return SnapshotError(message)
