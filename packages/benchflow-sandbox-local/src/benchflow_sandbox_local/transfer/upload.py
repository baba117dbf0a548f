"""Copy files from the host into a sandbox, without following symlinks of the agent."""

import errno
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchflow_contracts import SandboxError, SandboxLimitError, TransferError, host_error
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.thread import StopFlag
from benchflow_sandbox_core.transfer_errors import FILE_ERRNOS
from benchflow_sandbox_core.upload_entries import UploadEntry, scan

from benchflow_sandbox_local.launcher_process.paths import open_strict, split

from .location import locate

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner of uploaded entries, in the host's numbers."""

    uid: int
    gid: int


class Upload:
    """Copies one local file or tree; removes new entries when it fails."""

    def __init__(
        self, root: int, owner: FileOwner, stop: StopFlag, *, bounded: bool = True
    ) -> None:
        """Create an upload into the sandbox at `root`; `bounded` if it has a disk limit."""
        self._bounded = bounded
        self._root = root
        self._owner = owner
        self._stop = stop
        self._new: list[tuple[str, bool]] = []
        """The new entries, in order, and whether each is a directory."""

    def run(self, local: Path, remote: str) -> None:
        """Copy `local` to the path `remote`.

        Raises:
            TransferError: A file was refused. New entries are removed.
            SandboxLimitError: The sandbox's disk is full. New entries are removed.
            HostError: The host could not read or write. New entries are removed.
        """
        entries = list(scan(local))
        try:
            target = locate(self._root, absolute(remote))
            self._parents(target, inclusive=entries[0].is_directory)
            for entry in entries:
                self._stop.check()
                path = f"{target}/{entry.relative}".rstrip("/") if entry.relative else target
                if entry.is_directory:
                    self._directory(path, entry)
                else:
                    self._file(path, entry)
        except BaseException as error:
            self._undo()
            if isinstance(error, OSError | MemoryError):
                raise self._classify(remote, error) from error
            if isinstance(error, ValueError):
                raise TransferError(f"cannot upload to {remote!r}: {error}") from error
            raise

    def _classify(self, remote: str, error: OSError | MemoryError) -> SandboxError:
        """Return the error of a failed copy: caused by the sandbox's disk limit, or by the host."""
        number = error.errno if isinstance(error, OSError) else None
        if self._bounded and number in {errno.ENOSPC, errno.EDQUOT}:
            return SandboxLimitError(f"cannot upload to {remote!r}: the sandbox's disk is full")
        if number in FILE_ERRNOS or number == errno.EEXIST:
            return TransferError(f"cannot upload to {remote!r}: {error}")
        return host_error(f"upload to {remote!r}", error)

    def _parents(self, target: str, *, inclusive: bool) -> None:
        parts = [part for part in target.split("/") if part]
        for count in range(1, len(parts) + (1 if inclusive else 0)):
            path = "/" + "/".join(parts[:count])
            if not self._is_directory(path):
                self._make(path)

    def _is_directory(self, path: str) -> bool:
        """Return whether the directory exists; raise `TransferError` for another kind of entry."""
        try:
            fd = open_strict(self._root, path, os.O_PATH)
        except FileNotFoundError:
            return False
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise TransferError(f"{path!r} exists and is not a directory")
        finally:
            os.close(fd)
        return True

    def _make(self, path: str, mode: int = 0o755) -> None:
        parent_path, name = split(path)
        parent = open_strict(self._root, parent_path)
        try:
            os.mkdir(name, mode, dir_fd=parent)
            self._new.append((path, True))
            # By descriptor: a process inside may have replaced the directory by a symlink.
            directory = open_strict(parent, name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fchmod(directory, mode)
                os.fchown(directory, self._owner.uid, self._owner.gid)
            finally:
                os.close(directory)
        finally:
            os.close(parent)

    def _directory(self, path: str, entry: "UploadEntry") -> None:
        if path != "/" and not self._is_directory(path):
            self._make(path, entry.mode)

    def _file(self, path: str, entry: "UploadEntry") -> None:
        parent_path, name = split(path)
        parent = open_strict(self._root, parent_path)
        temporary = f".bf-{secrets.token_hex(8)}"
        try:
            existed = self._replaceable(parent, name, path)
            try:
                self._write(parent, temporary, entry)
                # A rename replaces a symlink of that name instead of following it.
                os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                _unlink(parent, temporary)
                raise
            if not existed:
                self._new.append((path, False))
        finally:
            os.close(parent)

    def _replaceable(self, parent: int, name: str, path: str) -> bool:
        try:
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(info.st_mode):
            raise TransferError(f"{path!r} exists and is not a regular file")
        return True

    def _write(self, parent: int, name: str, entry: "UploadEntry") -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        writer = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            with entry.open() as reader:
                while chunk := _read(reader, entry):
                    self._stop.check()
                    view = memoryview(chunk)
                    while view:
                        view = view[os.write(writer, view) :]
            os.fchown(writer, self._owner.uid, self._owner.gid)
            os.fchmod(writer, entry.mode)
        finally:
            os.close(writer)

    def _undo(self) -> None:
        for path, is_directory in reversed(self._new):
            try:
                parent_path, name = split(path)
                parent = open_strict(self._root, parent_path)
            except OSError:
                continue  # a process inside has moved it
            try:
                if is_directory:
                    os.rmdir(name, dir_fd=parent)
                else:
                    os.unlink(name, dir_fd=parent)
            except OSError:
                continue
            finally:
                os.close(parent)


def _read(reader: BinaryIO, entry: UploadEntry) -> bytes:
    try:
        return reader.read(_CHUNK)
    except OSError as error:
        raise host_error(f"read {str(entry.path)!r}", error) from error


def _unlink(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
