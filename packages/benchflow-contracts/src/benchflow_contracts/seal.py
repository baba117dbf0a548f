"""A code that proves which user wrote a file on this machine.

A digest finds damage, but anyone who changes a file can change its digest too. Data that is run
after it was read, such as a saved process, therefore needs a code that only its writer can make.
"""

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

_BYTES = 32


class Seal:
    """A secret in a file that only this user can read. It is created at the first use.

    A code that was made with a lost secret does not fit any more.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def of(self, text: str) -> str:
        """Return the code of `text` (HMAC-SHA256, in hex).

        Raises:
            OSError: The secret cannot be made or read, or is not this user's alone.
        """
        with suppress(FileNotFoundError):
            return self._code(text)
        with suppress(FileExistsError):
            self._make()
        return self._code(text)

    def fits(self, text: str, code: str) -> bool:
        """Return whether `code` belongs to `text` and this secret.

        Raises:
            OSError: The secret cannot be read, or is not this user's alone.
        """
        try:
            return hmac.compare_digest(self._code(text).encode(), code.encode())
        except FileNotFoundError:
            return False

    def _make(self) -> None:
        if self._path.exists():
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            # Two processes that start at once must share one secret.
            os.link(fresh, self._path)
        finally:
            fresh.unlink()

    def _code(self, text: str) -> str:
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            private = stat.S_ISREG(info.st_mode) and not info.st_mode & 0o077
            if not private or info.st_uid != os.geteuid() or info.st_size != _BYTES:
                raise PermissionError(f"{str(self._path)!r} is not readable by this user alone")
            return hmac.digest(file.read(_BYTES), text.encode(), "sha256").hex()
