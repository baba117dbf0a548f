"""What a live fork would lose of a box: found before its dump, while the box is frozen."""

from benchflow_contracts.errors import SnapshotError

from benchflow_sandbox_local.launcher import Launcher, LauncherError

Makers = list[list[int]]
"""Processes of the box, and the user, group and further groups whose unix sockets they made."""


class LossError(SnapshotError):
    """A child would lack something that the box has. The box continues unharmed.

    `retryable` says that the box itself may get rid of it, when it runs for a moment.
    """


async def inspect(launcher: Launcher, init: int, pids: list[int]) -> Makers:
    """Return who made the unix sockets of the frozen processes `pids`.

    Raises:
        LossError: They hold what the engine does not carry.
        SnapshotError: They could not be looked through.
    """
    try:
        answer = await launcher.ask("inspect", pid=init, pids=pids)
    except LauncherError as error:
        raise SnapshotError(f"the box cannot be looked through: {error}") from error
    findings: list[tuple[str, bool, str]] = answer.message["findings"]
    for what, drains, hint in findings:
        raise LossError(f"a live fork would lose {what}", hint=hint, retryable=drains)
    makers: Makers = answer.message["makers"]
    return makers
