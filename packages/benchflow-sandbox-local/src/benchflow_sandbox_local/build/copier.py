"""Copy the files of COPY and ADD into the root of a sandbox in which no process runs."""

import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from benchflow_contracts.cause import refuse_shortage
from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.thread import StopFlag

from benchflow_sandbox_local.launcher_process.syscalls import (
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    openat2,
)

from .source_files import File

_INSIDE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Copier:
    """Copies entries into a root. Symlinks in a target path cannot lead out of `root`."""

    root: int
    owner: tuple[int, int] | None
    """The uid and gid of the copies; `None` keeps the owner of each entry."""
    mode: int | None
    """The mode of each file and directory; `None` keeps the mode of each entry."""
    stop: StopFlag

    def make(self, path: str) -> int:
        """Open a directory of the sandbox; create it and its parents first, owned by `owner`."""
        current = openat2(self.root, ".", _DIRECTORY, resolve=_INSIDE)
        done = ""
        for part in [part for part in path.split("/") if part not in {"", "."}]:
            done = f"{done}/{part}"
            try:
                following = self._enter(current, part, done)
            finally:
                os.close(current)
            current = following
        return current

    def ensure(self, path: str) -> None:
        """Create a directory of the sandbox and its parents, owned by `owner`, if missing."""
        os.close(self.make(path))

    def _enter(self, parent: int, name: str, path: str) -> int:
        try:
            # From the root, so that a symlink to `/usr/bin` is resolved inside the sandbox.
            return openat2(self.root, path, _DIRECTORY, resolve=_INSIDE)
        except FileNotFoundError:
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chown(name, *(self.owner or (0, 0)), dir_fd=parent, follow_symlinks=False)
            return openat2(self.root, path, _DIRECTORY, resolve=_INSIDE)
        except NotADirectoryError as error:
            raise SandboxError(f"{path!r} of the image is not a directory") from error

    def is_directory(self, path: str) -> bool:
        """Return whether a path leads to a directory, also by symlinks."""
        try:
            os.close(openat2(self.root, path, _DIRECTORY, resolve=_INSIDE))
        except OSError as error:
            refuse_shortage(f"look for {path!r} in an image", error)
            return False
        return True

    def put(self, files: Iterable[File], directory: str, name: str | None) -> None:
        """Copy a tree into `directory`, as `name`; without `name`, copy only its entries."""
        for file in files:
            self.stop.check()
            path = "/".join(part for part in (name, file.relative) if part)
            if not path:
                os.close(self.make(directory))
                continue
            above, _, last = path.rpartition("/")
            parent = self.make(f"{directory}/{above}")
            try:
                self._entry(file, parent, last)
            finally:
                os.close(parent)

    def _entry(self, file: File, parent: int, name: str) -> None:
        present = _mode_of(parent, name)
        if file.kind == "directory":
            if present is not None and not stat.S_ISDIR(present):
                os.unlink(name, dir_fd=parent)
                present = None
            if present is None:
                os.mkdir(name, 0o755, dir_fd=parent)
                self._copy_attributes(file, parent, name)
            return
        if present is not None and stat.S_ISDIR(present):
            raise SandboxError(f"{name!r} would replace a directory of the image")
        temporary = f".bf-{secrets.token_hex(8)}"
        if file.kind == "link":
            os.symlink(os.readlink(file.path), temporary, dir_fd=parent)  # noqa: PTH115
        else:
            self._write(file, parent, temporary)
        self._copy_attributes(file, parent, temporary)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)

    def _write(self, file: File, parent: int, name: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            file.open() as reader,
            os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as to,
        ):
            shutil.copyfileobj(reader, to, 1 << 20)

    def _copy_attributes(self, file: File, parent: int, name: str) -> None:
        info = file.info
        owner = self.owner or (info.st_uid, info.st_gid)
        os.chown(name, *owner, dir_fd=parent, follow_symlinks=False)
        if file.kind != "link":
            mode = stat.S_IMODE(info.st_mode) if self.mode is None else self.mode
            os.chmod(name, mode & 0o1777, dir_fd=parent)
        os.utime(
            name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=parent, follow_symlinks=False
        )


def _mode_of(parent: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
