"""Time-outs of tests that read an endless file of the agent."""

from collections.abc import Generator
from contextlib import contextmanager

from benchflow_contracts import FileChanges, SandboxTimeoutError

from benchflow_reward.errors import VerifierTimeoutError

_DEVICES = ("/dev/", "/proc/")


def attribute_timeout(
    error: VerifierTimeoutError | SandboxTimeoutError, changes: FileChanges | None
) -> VerifierTimeoutError | None:
    """Return the error that names the agent for tests, or for a command before them, out of time.

    A busy host can be the cause, too, so the agent is named only if it left something that a
    reader may never finish: a pipe, a device, an endless file. `None` otherwise.
    """
    found = None if changes is None else _endless(changes)
    if found is None:
        return None
    return VerifierTimeoutError(
        f"{error}; the agent left {found!r}, which a reader may wait for without end",
        caused_by="inside",
    )


@contextmanager
def endless_files_attributed(changes: FileChanges | None) -> Generator[None]:
    """Name the agent if the block runs out of time because of the agent's files; see `stalled`."""
    try:
        yield
    except (VerifierTimeoutError, SandboxTimeoutError) as error:
        if (found := attribute_timeout(error, changes)) is None:
            raise
        raise found from error


def _endless(changes: FileChanges) -> str | None:
    leads = (path for path, target in changes.links.items() if target.startswith(_DEVICES))
    return next(iter((*changes.endless, *leads)), None)
