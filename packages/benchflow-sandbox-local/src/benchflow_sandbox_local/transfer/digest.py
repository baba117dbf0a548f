"""Digests of files in a running sandbox, whose content is hostile."""

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
"""More time than the clock of a file system can be late."""

FileIdentity = tuple[str | int, ...]
"""Identifies a version of a file: a write, replacement or removal changes it."""


@dataclass(frozen=True, slots=True)
class DigestCache:
    """Digests of a sealed layer's files. All sandboxes on that layer share them."""

    digests: MutableMapping[FileIdentity, str] = field(default_factory=dict[FileIdentity, str])
    since: int = 0
    """The start of the sandbox, in nanoseconds of the clock. Later changes belong to the sandbox
    itself."""

    def shares(self, changed: int) -> bool:
        """Return whether a file whose inode changed at the time `changed` is the layer's."""
        return changed < self.since - _CLOCK_NS


class FileDigester:
    """Computes digests of files, and refuses files that change meanwhile."""

    def __init__(self, root: int, max_bytes: int, known: DigestCache, stop: StopFlag) -> None:
        self._root = root
        self._left = max_bytes
        self._known = known
        self._stop = stop

    def run(self, paths: Sequence[str]) -> dict[str, str]:
        """Return the digests of the files that exist.

        Raises:
            TransferError: A file is refused, is too large, or changed meanwhile.
            HostError: The host could not read a file.
        """
        before = {path: self._identity(path) for path in paths}
        digests = {
            path: self._cached(path, identity)
            for path, identity in before.items()
            if identity is not None
        }
        for path, identity in before.items():
            if self._identity(path) != identity:
                raise TransferError(f"{path!r} was changed while it was read", retryable=True)
        return digests

    def _cached(self, path: str, identity: FileIdentity) -> str:
        """Return the digest of a file, from the cache for a file of the layer.

        Overlay copies a file of the layer before a sandbox writes to it. The copy has another
        identity.
        """
        shared_digests = self._known.digests
        shared = self._known.shares(int(identity[-1]))
        if shared and identity in shared_digests:
            return shared_digests[identity]
        digest = self._digest(path)
        if shared and self._identity(path) == identity:
            shared_digests[identity] = digest
        return digest

    def _identity(self, path: str) -> FileIdentity | None:
        try:
            place, info = self._find(path)
        except FileNotFoundError:
            return None
        os.close(place)
        # Without the device, which differs in each sandbox.
        return path, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns

    def _find(self, path: str) -> tuple[int, os.stat_result]:
        """Open a regular file as O_PATH, which has no effect on pipes and devices."""
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
                        raise TransferError(f"{path!r} exceeds the limit of bytes to read")
                    total.update(space[:size])
        except FileNotFoundError as error:
            raise TransferError(f"cannot read {path!r}: {error.strerror}") from error
        except OSError as error:
            raise host_error(f"read {path!r}", error) from error
        return total.hexdigest()
