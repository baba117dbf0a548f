# Raw names below roots of sandboxes: pathlib would add nothing here.
# ruff: noqa: PTH101, PTH104, PTH106, PTH108
"""Copy and remove trees of a sandbox. Their names, depth and symlinks may be hostile."""

import errno
import os
import stat
from dataclasses import dataclass, field

from . import inode_pins

MAX_DEPTH = 200
_PRIVATE = {"origin", "impure", "nlink", "upper", "uuid"}
_CHUNK = 1 << 20
_SMALL, _PAGE = 1 << 16, 4096


def keep_attribute(name: str) -> bool:
    """Return whether an extended attribute belongs into a copied layer."""
    prefix, _, rest = name.partition(".overlay.")
    return prefix not in {"trusted", "user"} or rest not in _PRIVATE


def remove(path: str, trash: str) -> None:
    """Remove a tree of any depth: move each directory to the flat directory `trash` first."""
    counter = 0
    pending = [path]
    while pending:
        directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                counter += 1
                target = f"{trash}/{os.getpid()}-{counter}"
                os.chmod(entry.path, 0o700)
                os.rename(entry.path, target)
                pending.append(target)
        os.rmdir(directory)


@dataclass(slots=True)
class LayerCopy:
    """Copies an upper directory onto a layer, by the rules of overlay.

    The result in an empty target is an exact copy. In another target, the new layer is merged over
    the older one.
    """

    target: str
    opaque: str
    """The extended attribute that marks an opaque directory."""
    trash: str
    skipped: frozenset[str] = frozenset()
    """Names at the top that belong to the launcher, not to the sandbox."""
    bytes: int = 0
    _links: dict[int, str] = field(default_factory=dict[int, str])

    def apply(self, source: str) -> None:
        """Copy everything below `source`."""
        src, dst = _open_dir(source), _open_dir(self.target)
        try:
            self._links.clear()
            self._directory(src, dst, "", 0)
        finally:
            os.close(src)
            os.close(dst)

    def _directory(self, src: int, dst: int, prefix: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise OSError(36, f"{prefix[:200]!r} is nested deeper than {MAX_DEPTH} directories")
        for name in os.listdir(src):
            if depth or name not in self.skipped:
                self._entry(src, dst, name, f"{prefix}{name}", depth)

    def _entry(self, src: int, dst: int, name: str, path: str, depth: int) -> None:
        info = os.stat(name, dir_fd=src, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            self._enter(src, dst, name, path, depth)
        else:
            self._clear(dst, name, path)
            if info.st_ino in self._links:
                self._link(self._links[info.st_ino], dst, name)
                return
            if info.st_nlink > 1:
                self._links[info.st_ino] = path
            self._leaf(src, dst, name, info)
        _copy_metadata(src, dst, name, info)

    def _enter(self, src: int, dst: int, name: str, path: str, depth: int) -> None:
        below = _open_dir(name, src)
        try:
            if self.opaque in os.listxattr(below) or not _is_dir(dst, name):
                self._clear(dst, name, path)
                os.mkdir(name, 0o700, dir_fd=dst)
            into = _open_dir(name, dst)
            try:
                self._directory(below, into, f"{path}/", depth + 1)
            finally:
                os.close(into)
        finally:
            os.close(below)

    def _clear(self, dst: int, name: str, path: str) -> None:
        if _is_dir(dst, name):
            remove(f"{self.target}/{path}", self.trash)
        else:
            try:
                os.unlink(name, dir_fd=dst)
            except FileNotFoundError:
                return

    def _link(self, first: str, dst: int, name: str) -> None:
        os.link(f"{self.target}/{first}", name, dst_dir_fd=dst, follow_symlinks=False)

    def _leaf(self, src: int, dst: int, name: str, info: os.stat_result) -> None:
        if stat.S_ISREG(info.st_mode):
            # Memory and disks are allocated in pages.
            self.bytes += -(-_copy_data(src, dst, name, info) // _PAGE) * _PAGE
        elif stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=src), name, dir_fd=dst)
        else:
            os.mknod(name, info.st_mode, info.st_rdev, dir_fd=dst)


def _open_dir(path: str, parent: int | None = None) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, dir_fd=parent)


def open_unread(name: str, parent: int) -> int:
    """Open a file to read it, without a change of its access time if that is allowed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags | os.O_NOATIME, dir_fd=parent)
    except PermissionError:  # the user namespace does not map the owner
        return os.open(name, flags, dir_fd=parent)


def _is_dir(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _copy_data(src: int, dst: int, name: str, info: os.stat_result) -> int:
    """Copy the data and keep holes as holes; return the number of copied bytes."""
    reader = open_unread(name, src)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    writer = os.open(name, flags, 0o600, dir_fd=dst)
    size = info.st_size
    copied = offset = 0
    try:
        if size <= _SMALL and info.st_blocks * 512 >= size:
            return os.write(writer, os.read(reader, size))
        os.ftruncate(writer, size)
        while offset < size:
            try:
                start = os.lseek(reader, offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # the rest is a hole
            end = os.lseek(reader, start, os.SEEK_HOLE)
            os.lseek(reader, start, os.SEEK_SET)
            os.lseek(writer, start, os.SEEK_SET)
            while start < end:
                sent = os.sendfile(writer, reader, None, min(end - start, _CHUNK))
                start, copied = start + sent, copied + sent
            offset = end
    finally:
        os.close(reader)
        os.close(writer)
    return copied


def _copy_owner(dst: int, name: str, info: os.stat_result) -> None:
    try:
        os.chown(name, info.st_uid, info.st_gid, dir_fd=dst, follow_symlinks=False)
    except OSError as error:
        # A user namespace maps one user, who then owns the copies of all files.
        if error.errno != errno.EINVAL:
            raise


def _copy_metadata(src: int, dst: int, name: str, info: os.stat_result) -> None:
    _copy_owner(dst, name, info)
    source, target = f"/proc/self/fd/{src}/{name}", f"/proc/self/fd/{dst}/{name}"
    for attribute in os.listxattr(source, follow_symlinks=False):
        if keep_attribute(attribute):
            value = os.getxattr(source, attribute, follow_symlinks=False)
            if attribute == inode_pins.ATTRIBUTE:
                new = os.stat(name, dir_fd=dst).st_ino
                value = inode_pins.pin_of_copy(value, info.st_ino, new)
            os.setxattr(target, attribute, value, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=dst)
    times = (info.st_atime_ns, info.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=dst, follow_symlinks=False)
