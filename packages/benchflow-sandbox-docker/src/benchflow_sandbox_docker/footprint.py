"""Count the bytes of a copy of a directory, in which holes are written as zeros."""

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field

from benchflow_contracts.errors import SandboxLimitError, SandboxTimeoutError
from benchflow_sandbox_core.comparison import MAX_DEPTH, as_text
from benchflow_sandbox_core.thread import StopFlag

MAX_ENTRIES = 1_000_000
COUNT_SECONDS = 120.0
_BLOCK, _MB = 4096, 1 << 20
_OF_ENTRY = 1024
"""Bytes that the engine writes for each name besides the content."""


@dataclass(slots=True)
class Footprint:
    """Count the files below one directory. The files are hostile, so no link is followed.

    A file with several names counts once, as in the engine's archives. A hole counts in full.
    """

    stop: StopFlag
    ends: float = field(default_factory=lambda: time.monotonic() + COUNT_SECONDS)
    size: int = 0
    """Bytes of a copy without holes."""
    allocated: int = 0
    """Bytes that the files use on the disk now."""
    entries: int = 0
    largest: str = ""
    largest_size: int = 0
    _seen: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def __str__(self) -> str:
        whole = f"{self.size // _MB} MB"
        if self.largest_size < _MB:
            return whole
        return f"{whole} (the largest file is {self.largest!r} with {self.largest_size // _MB} MB)"

    def count(self, directory: int) -> None:
        """Add everything below an open directory.

        Raises:
            SandboxLimitError: The directory has more entries or levels than a snapshot may have.
            SandboxTimeoutError: The host did not read the directory in time.
        """
        self._below(directory, "", 0)

    def _below(self, directory: int, path: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SandboxLimitError(f"a path is deeper than {MAX_DEPTH} directories")
        self._check()
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                    self._add(info, f"{path}/{entry.name}")
                    if stat.S_ISDIR(info.st_mode):
                        self._enter(directory, entry.name, path, depth)
                except FileNotFoundError:
                    continue

    def _enter(self, directory: int, name: str, path: str, depth: int) -> None:
        below = _open_dir(name, directory)
        try:
            self._below(below, f"{path}/{name}", depth + 1)
        finally:
            os.close(below)

    def _add(self, info: os.stat_result, path: str) -> None:
        self.entries += 1
        self.size += _OF_ENTRY
        if not self.entries % 1024:
            self._check()
        if self.entries > MAX_ENTRIES:
            raise SandboxLimitError(f"a snapshot would have more than {MAX_ENTRIES} new files")
        if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
            key = (info.st_dev, info.st_ino)
            if key in self._seen:
                return
            self._seen.add(key)
        # The size of a directory depends on its names, and processes cannot set it.
        size = -(-info.st_size // _BLOCK) * _BLOCK
        self.size += size
        self.allocated += info.st_blocks * 512
        if stat.S_ISREG(info.st_mode) and size > self.largest_size:
            self.largest, self.largest_size = as_text(path), size

    def _check(self) -> None:
        self.stop.check()
        if time.monotonic() > self.ends:
            raise SandboxTimeoutError(
                f"the files of a container were not counted in {COUNT_SECONDS:g} s",
                hint="is the disk of the engine busy?",
                retryable=True,
                caused_by="host",
            )


def empty(directory: int, stop: StopFlag) -> None:
    """Delete all files below the directory of a container that will be removed.

    A reader of a file then reaches its end immediately, and a walk does not find more files.
    """
    stop.check()
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    _empty_below(directory, entry.name, stop)
                else:
                    if entry.is_file(follow_symlinks=False):
                        _truncate(directory, entry.name)
                    os.unlink(entry.name, dir_fd=directory)


def _empty_below(directory: int, name: str, stop: StopFlag) -> None:
    below = _open_dir(name, directory)
    try:
        empty(below, stop)
    finally:
        os.close(below)


def _truncate(directory: int, name: str) -> None:
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=directory)
    try:
        os.ftruncate(fd, 0)
    finally:
        os.close(fd)


def _open_dir(name: str, parent: int) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
