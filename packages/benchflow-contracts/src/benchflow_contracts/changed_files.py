"""What a host knows of the files that changed in a sandbox."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from ._model import Model


class FileDiff(Model):
    """Paths, by what happened to them."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class FileChanges(FileDiff):
    """Absolute paths of a box, by what happened to them. Bytes that are no text are escaped."""

    links: Mapping[str, str] = {}
    """Of those that are there: where the symbolic ones lead."""
    endless: tuple[str, ...] = ()
    """Of those that are there: what a reader may never reach the end of. Named pipes, and files
    whose size is far over what a disk of a sandbox holds."""


@runtime_checkable
class TracksFileChanges(Protocol):
    """What a sandbox can do whose files the host can compare with what they were.

    All of it is told by the host: nothing inside is run or believed, so it holds against
    a root inside.
    """

    async def set_baseline(self) -> None:
        """Take the files as they are now for what `changes` compares with.

        Snapshots carry it, saved ones too: a sandbox made from one compares with the mark of the
        first.

        Raises:
            SandboxUnsupportedError: Too much has been written already to be kept in mind, or
                this sandbox was made from a snapshot.
            SandboxError: It failed; no mark holds.
        """
        ...

    def ignore_changes(self) -> AbstractAsyncContextManager[None]:
        """Let what is written while it is held be no change, here and in what is made of it.

        Nothing but what this holder starts may be alive at the beginning: whoever else is
        there could write too. A path that had changed before stays a change.

        Raises:
            SandboxUnsupportedError: Something else is alive, or no mark holds; nothing is
                taken.
            SandboxError: It failed; what was written counts as a change.
        """
        ...

    async def changed_files(self) -> FileChanges:
        """Return the absolute paths that are neither as they were at the mark nor `ours`.

        Complete for what a snapshot holds: mounts are left out. A directory is named when
        it was made, removed, replaced or itself changed, not for what is in it. A file that
        was written with what it held, or only touched, may be named `changed`.

        Raises:
            SandboxUnsupportedError: No mark was made, or this sandbox lost it.
            SandboxError: It failed.
        """
        ...
