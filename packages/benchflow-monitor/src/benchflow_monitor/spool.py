"""Batches on disk while the server is away, up to a limit of bytes."""

import hashlib
import itertools
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

_SUFFIX = ".batch"
_PARTIAL = ".partial"
_ABANDONED_SEC = 600.0
"""A file that is still written is younger: a batch is small."""
_numbers = itertools.count()


def default_spool(url: str) -> Path:
    """Return the directory of this user for a server, below `$XDG_STATE_HOME` or `~/.local/state`.

    Each URL has its own, so that no server gets the records of another.
    """
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    server = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    return Path(state) / "benchflow" / "monitor" / server


def records_of(path: Path) -> int:
    """Return the number of records in a batch, from its name."""
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0


class Spool:
    """Batches as files, oldest first. Several processes may share a directory.

    A batch is written under another name and renamed, so a crash leaves no half batch, and the next
    `put` after some minutes deletes what it did leave. The server ignores a batch that two
    processes sent.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit

    def put(self, batch: bytes, records: int) -> bool:
        """Write a batch. Return False if the limit is reached or the disk refuses."""
        try:
            self._make_directory()
            if self._size() + len(batch) > self._limit:
                return False
            name = f"{time.time_ns():020d}-{os.getpid()}-{next(_numbers)}-{records}"
            partial = self._directory / f"{name}{_PARTIAL}"
            try:
                partial.write_bytes(batch)
                partial.rename(self._directory / f"{name}{_SUFFIX}")
            except OSError:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
                raise
        except OSError:
            return False
        return True

    def oldest(self) -> Path | None:
        """Return the file of the oldest batch, or None."""
        try:
            names = [entry.name for entry in os.scandir(self._directory)]
        except OSError:
            return None
        batches = sorted(name for name in names if name.endswith(_SUFFIX))
        return self._directory / batches[0] if batches else None

    def read(self, path: Path) -> bytes | None:
        """Return a batch, or None if another process took it or it is not a regular file."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            return file.read(self._limit)

    def remove(self, path: Path) -> None:
        """Delete a batch that was sent or refused."""
        with suppress(OSError):
            path.unlink(missing_ok=True)

    def _size(self) -> int:
        """Return the bytes of all files. Delete the files of programs that ended in a write."""
        total, now = 0, time.time()
        with suppress(OSError):
            for entry in os.scandir(self._directory):
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    # A file of the future is of a clock that was set back.
                    if entry.name.endswith(_PARTIAL) and (
                        abs(now - status.st_mtime) > _ABANDONED_SEC
                    ):
                        Path(entry.path).unlink()
                    else:
                        total += status.st_size
        return total

    def _make_directory(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._directory.stat()
        if status.st_uid != os.getuid():
            raise PermissionError(f"{self._directory} belongs to another user")
        if status.st_mode & 0o077:
            self._directory.chmod(0o700)
