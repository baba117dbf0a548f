"""The files that changed in a sandbox, as the host sees them."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from ._model import Model


class FileDiff(Model):
    """Changed paths, grouped by kind of change."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class FileChanges(FileDiff):
    """Changed absolute paths in a sandbox. Non-UTF-8 bytes are escaped."""

    links: Mapping[str, str] = {}
    """The targets of symbolic links among the paths that exist."""
    endless: tuple[str, ...] = ()
    """The existing paths that a reader may never finish: named pipes, and files that are much
    larger than the disk of a sandbox."""


@runtime_checkable
class TracksFileChanges(Protocol):
    """A sandbox whose files the host can compare with a baseline.

    The host compares them. Nothing inside is run or trusted, so root inside cannot falsify the
    result.
    """

    async def set_baseline(self) -> None:
        """Set the baseline that `changed_files` compares with to the files as they are now.

        Snapshots keep the baseline, also saved ones: a sandbox from a snapshot compares with the
        baseline of the first sandbox.

        Raises:
            SandboxUnsupportedError: Too many files were written already, or this sandbox was made
                from a snapshot.
            SandboxError: It failed, and there is no baseline.
        """
        ...

    def ignore_changes(self) -> AbstractAsyncContextManager[None]:
        """Ignore changes made inside this block, in this sandbox and in its forks.

        No other process may run when the block begins, because it could write too. A path that
        changed before the block stays a change.

        Raises:
            SandboxUnsupportedError: Another process runs, or there is no baseline. Nothing is
                ignored.
            SandboxError: It failed. The writes of the block count as changes.
        """
        ...

    async def changed_files(self) -> FileChanges:
        """Return the absolute paths that differ from the baseline and are not ignored.

        The result is complete for all files that a snapshot holds. Mounts are not included. A
        directory is included if it was created, removed or replaced, or if its own metadata
        changed, but not for a change of its entries. A file that was written with equal bytes, or
        only touched, may be `changed`.

        Raises:
            SandboxUnsupportedError: There is no baseline, or this sandbox lost it.
            SandboxError: It failed.
        """
        ...
