"""Copy files out of the agent's sandbox, which is hostile."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchflow_contracts import (
    Artifact,
    RewardError,
    Sandbox,
    SandboxError,
    SandboxTimeoutError,
    SupportsServices,
    TransferError,
    caused_outside,
)

from .at_rest import at_rest

MAX_BYTES = 256 * 1024 * 1024

Outcome = Literal["copied", "absent", "refused"]

_EXISTS_SEC = 60
"""A sandbox that needs longer does not respond: a busy host needs much less."""
_EXISTS = '[ -e "$1" ] || [ -L "$1" ]'


@dataclass(frozen=True, slots=True)
class Collected:
    """A path of the sandbox: its private copy on the host, or the reason for none."""

    path: str
    outcome: Outcome
    local: Path | None = None
    reason: str = ""
    service: str = ""
    """The service that it was copied from; empty for the agent's own sandbox."""


async def collect(
    sandbox: Sandbox,
    paths: Sequence[str],
    into: Path,
    *,
    max_bytes: int = MAX_BYTES,
    leave_out: bool = False,
    may_kill: bool = False,
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> list[Collected]:
    """Copy `paths` to `into/0`, `into/1`, ... from one instant of the sandbox.

    A path that is not there is `absent`; one that holds a link, a device, a pipe
    or more than `max_bytes` is `refused` as a whole. Both are the agent's doing and no fault:
    nothing in the sandbox can raise an error from here. With `leave_out`, only files and
    directories of a tree are copied, nothing is run in the sandbox, and a path that cannot be
    copied is `absent`. `meanwhile` is called at the same instant. With `may_kill`, a sandbox that
    cannot be frozen loses its processes.

    Raises:
        RewardError: The transfer itself broke, or the sandbox is gone.
        HostError: The host could not copy.
    """
    taken: list[Collected] = []
    failed: list[tuple[int, TransferError]] = []
    async with at_rest(sandbox, may_kill=may_kill):
        if meanwhile is not None:
            await meanwhile()
        for index, path in enumerate(paths):
            local = into / str(index)
            try:
                await sandbox.download(path, local, max_bytes=max_bytes, leave_out=leave_out)
            except TransferError as error:
                if error.retryable:
                    raise RewardError(f"cannot fetch {path!r}: {error}", retryable=True) from error
                failed.append((index, error))
                taken.append(Collected(path, "absent"))
            else:
                taken.append(Collected(path, "copied", local))
    for index, cause in [] if leave_out else failed:
        if await _exists(sandbox, paths[index]):
            taken[index] = Collected(paths[index], "refused", reason=str(cause))
    return taken


async def collect_beside(sandbox: Sandbox, artifact: Artifact, local: Path) -> Collected:
    """Copy an artifact of a service to `local`. What cannot be copied safely is `absent`.

    Raises:
        RewardError: The transfer itself broke.
    """
    if not isinstance(sandbox, SupportsServices):
        return Collected(artifact.source, "absent", reason="this sandbox has no services")
    try:
        await sandbox.service_download(
            artifact.service, artifact.source, local, max_bytes=MAX_BYTES
        )
    except SandboxError as error:
        if error.retryable or caused_outside(error):
            raise RewardError(
                f"cannot fetch {artifact.source!r} of {artifact.service!r}: {error}",
                retryable=error.retryable,
            ) from error
        return Collected(artifact.source, "absent", reason=str(error))
    return Collected(artifact.source, "copied", local, service=artifact.service)


async def _exists(sandbox: Sandbox, path: str) -> bool:
    # Only after a failed download, and only to tell "not there" from "not fit":
    # a sandbox that lies here gains nothing, and a dead one answers nothing.
    try:
        probe = await sandbox.exec(
            ["/bin/sh", "-c", _EXISTS, "sh", path], user="root", cwd="/", timeout=_EXISTS_SEC
        )
    except SandboxTimeoutError as error:
        raise RewardError(
            f"cannot tell whether {path!r} exists: {error}", caused_by="inside"
        ) from error
    if probe.exit_code not in (0, 1):
        raise RewardError(
            f"cannot tell whether {path!r} exists: exit code {probe.exit_code}", caused_by="inside"
        )
    return probe.exit_code == 0
