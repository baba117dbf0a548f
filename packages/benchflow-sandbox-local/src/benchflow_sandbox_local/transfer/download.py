"""Copy files from a sandbox to the host. Names, types, sizes and depth are hostile."""

import os
import secrets
import stat
from contextlib import ExitStack
from pathlib import Path

from benchflow_contracts.errors import TransferError
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.thread import StopFlag
from benchflow_sandbox_core.transfer_errors import discard, opening_in_sandbox, transfer_error

from benchflow_sandbox_local.launcher_process.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)

from .location import locate

_CHUNK = 1 << 20
_MAX_ENTRIES, _MAX_DEPTH = 100_000, 64
_RULES = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV


class Download:
    """Copies one file or tree to a new local path, completely or not at all."""

    def __init__(
        self, root: int, max_bytes: int, stop: StopFlag, *, leave_out: bool = False
    ) -> None:
        self._root = root
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._entries = 0
        self._stop = stop
        self._leave_out = leave_out

    def run(self, remote: str, local: Path) -> None:
        """Copy `remote` to `local`, which must not exist.

        Raises:
            TransferError: A file is missing, refused or too large. `local` does not exist then.
            HostError: The host could not read or write. `local` does not exist then.
        """
        if os.path.lexists(local):
            raise TransferError(f"{str(local)!r} exists; name a new path")
        temporary = local.with_name(f".{local.name}.{secrets.token_hex(6)}")
        try:
            local.parent.mkdir(parents=True, exist_ok=True)
            self._entry(self._root, locate(self._root, absolute(remote)), temporary, remote, 0)
            temporary.rename(local)
        except BaseException as error:
            discard(temporary)
            if isinstance(error, OSError | MemoryError):
                raise transfer_error(f"download {remote!r}", error) from error
            raise

    def _entry(self, parent: int, name: str, target: Path, shown: str, depth: int) -> None:
        self._stop.check()
        self._entries += 1
        if self._entries > _MAX_ENTRIES or depth > _MAX_DEPTH:
            limit = f"{_MAX_ENTRIES} entries or {_MAX_DEPTH} levels"
            raise TransferError(f"{shown[:200]!r}: the tree has more than {limit}")
        # O_PATH does not open a pipe or a device itself.
        flags = os.O_PATH | os.O_NOFOLLOW
        with opening_in_sandbox(f"download {shown!r}"):
            place = openat2(parent, name.strip("/") or ".", flags, resolve=_RULES)
        try:
            info = os.fstat(place)
            if stat.S_ISDIR(info.st_mode):
                self._directory(place, target, shown, depth)
            elif stat.S_ISREG(info.st_mode):
                self._file(place, info, target, shown)
            elif depth == 0 or not self._leave_out:
                raise TransferError(f"{shown!r} is neither a regular file nor a directory")
        finally:
            os.close(place)

    def _directory(self, place: int, target: Path, shown: str, depth: int) -> None:
        target.mkdir(mode=0o755)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with opening_in_sandbox(f"download {shown!r}"):
            opened = os.open(f"/proc/self/fd/{place}", flags)
        try:
            for name in sorted(_names(opened, _MAX_ENTRIES - self._entries, shown)):
                self._entry(place, name, target / name, f"{shown}/{name}", depth + 1)
        finally:
            os.close(opened)

    def _file(self, place: int, info: os.stat_result, target: Path, shown: str) -> None:
        if info.st_size > self._left:
            raise self._too_big(shown)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        with ExitStack() as stack:
            with opening_in_sandbox(f"download {shown!r}"):
                reader = os.open(f"/proc/self/fd/{place}", flags)
            stack.callback(os.close, reader)
            writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, writer)
            # The file may grow during the copy, so the limit applies to the bytes that are read.
            while chunk := os.read(reader, _CHUNK):
                self._stop.check()
                self._left -= len(chunk)
                if self._left < 0:
                    raise self._too_big(shown)
                view = memoryview(chunk)
                while view:
                    view = view[os.write(writer, view) :]
            os.fchmod(writer, 0o755 if info.st_mode & 0o111 else 0o644)

    def _too_big(self, shown: str) -> TransferError:
        return TransferError(f"{shown!r} exceeds the limit of {self._max_bytes} bytes")


def _names(directory: int, limit: int, shown: str) -> list[str]:
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > limit:
                raise TransferError(f"{shown[:200]!r} has more than {_MAX_ENTRIES} entries")
    return names
