"""FileDigester of files in a sandbox that runs on. Everything inside is hostile."""

import hashlib
import os
import stat
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field

from benchflow_contracts import TransferError, host_error
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.thread import StopFlag
from benchflow_sandbox_core.transfer_errors import opening_in_sandbox

from benchflow_sandbox_local.launcher_process.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)

from .location import locate

_CHUNK = 1 << 18
_RULES = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV

_CLOCK_NS = 20_000_000
"""More than the clock of a file system can lag behind."""

FileIdentity = tuple[str | int, ...]
"""Identifies a version of a file: a write, replacement or removal changes it."""


@dataclass(frozen=True, slots=True)
class DigestCache:
    """FileDigester that all sandboxes on one sealed layer share, of files that none has changed."""

    digests: MutableMapping[FileIdentity, str] = field(default_factory=dict[FileIdentity, str])
    since: int = 0
    """When the sandbox began, in nanoseconds of the clock: what has changed later is its own."""

    def shares(self, changed: int) -> bool:
        """Return whether a file whose inode changed at that time still belongs to the layer."""
        return changed < self.since - _CLOCK_NS


class FileDigester:
    """FileDigester files between two looks that agree."""

    def __init__(self, root: int, max_bytes: int, known: DigestCache, stop: StopFlag) -> None:
        self._root = root
        self._left = max_bytes
        self._known = known
        self._stop = stop

    def run(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the digests of the files that exist.

        Raises:
            TransferError: Refused, too big, or changed meanwhile.
            HostError: The host could not read them.
        """
        before = {path: self._look(path) for path in paths}
        found = {
            path: self._cached(path, look) for path, look in before.items() if look is not None
        }
        for path, look in before.items():
            if self._look(path) != look:
                raise TransferError(f"{path!r} was changed while it was read", retryable=True)
        return found

    def _cached(self, path: str, look: FileIdentity) -> str:
        """Return the digest of a file, from the record where it is the layer's own.

        What a sandbox writes to it is a copy of its own first, and that changes the look.
        """
        shared_digests = self._known.digests
        shared = self._known.shares(int(look[-1]))
        if shared and look in shared_digests:
            return shared_digests[look]
        digest = self._digest(path)
        if shared and self._look(path) == look:
            shared_digests[look] = digest
        return digest

    def _look(self, path: str) -> FileIdentity | None:
        try:
            place, info = self._find(path)
        except FileNotFoundError:
            return None
        os.close(place)
        # Not the device, which is another one in each sandbox.
        return path, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns

    def _find(self, path: str) -> tuple[int, os.stat_result]:
        """Open a regular file as O_PATH, which touches no pipe and no device."""
        name = locate(self._root, absolute(path)).strip("/") or "."
        try:
            with opening_in_sandbox(f"read {path!r}"):
                place = openat2(self._root, name, os.O_PATH | os.O_NOFOLLOW, resolve=_RULES)
        except TransferError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise
        info = os.fstat(place)
        if not stat.S_ISREG(info.st_mode):
            os.close(place)
            raise TransferError(f"{path!r} is not a regular file")
        return place, info

    def _digest(self, path: str) -> str:
        total = hashlib.sha256()
        try:
            place, _ = self._find(path)
            try:
                flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
                reader = os.open(f"/proc/self/fd/{place}", flags)
            finally:
                os.close(place)
            space = memoryview(bytearray(_CHUNK))
            with os.fdopen(reader, "rb", buffering=0) as file:
                while size := file.readinto(space):
                    self._stop.check()
                    self._left -= size
                    if self._left < 0:
                        raise TransferError(f"{path!r} goes over the cap of bytes to read")
                    total.update(space[:size])
        except FileNotFoundError as error:
            raise TransferError(f"cannot read {path!r}: {error.strerror}") from error
        except OSError as error:
            raise host_error(f"read {path!r}", error) from error
        return total.hexdigest()
