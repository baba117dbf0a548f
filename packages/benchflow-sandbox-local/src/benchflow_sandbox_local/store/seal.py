"""What tells a snapshot that this user saved here from one that somebody else wrote.

A digest says that nothing broke; whoever changes a file can change its digest, too. What is in
a saved snapshot becomes root's work on this host: device nodes, mounts, memory images. So
nothing of it is believed without a code that only the owner of this store can make.
"""

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from benchflow_contracts.errors import SnapshotError

_BYTES = 32


class Seal:
    """A secret of this user on this machine, in a file that is read by nobody else.

    It is made when something is saved for the first time. Without it, what it sealed can no
    longer be loaded.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, text: str) -> str:
        """Return the code of `text` (HMAC-SHA256, in hex).

        Raises:
            OSError: The secret cannot be made.
            SnapshotError: It is somebody else's, or damaged.
        """
        with suppress(FileExistsError):
            self._make()
        return self._code(text)

    def check(self, text: str, code: str) -> None:
        """Raise `SnapshotError` unless `code` was made here for `text`."""
        try:
            right = hmac.compare_digest(self._code(text).encode(), code.encode())
        except FileNotFoundError:
            right = False
        except OSError as error:
            raise SnapshotError(f"the seal of this store cannot be read: {error}") from error
        if not right:
            raise SnapshotError(
                "the snapshot was not saved by this user here, or was changed since",
                hint="load it with the store of the provider that saved it; never open a"
                " snapshot that somebody else gave you: it runs as root",
            )

    def _make(self) -> None:
        if self._path.exists():
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = os.open(fresh, flags, 0o600)
        try:
            os.write(fd, secrets.token_bytes(_BYTES))
            os.fsync(fd)
            # Two that begin at once must not have a secret each.
            os.link(fresh, self._path)
        finally:
            os.close(fd)
            fresh.unlink()

    def _code(self, text: str) -> str:
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            private = stat.S_ISREG(info.st_mode) and not info.st_mode & 0o077
            if not private or info.st_uid != os.geteuid() or info.st_size != _BYTES:
                raise SnapshotError(
                    f"{str(self._path)!r} is no secret of this user alone",
                    hint="remove it; what it sealed cannot be loaded any more",
                )
            return hmac.digest(file.read(_BYTES), text.encode(), "sha256").hex()
