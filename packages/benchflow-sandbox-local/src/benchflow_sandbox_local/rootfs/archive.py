"""Unpack a tar archive of a root file system. The archive may be hostile."""

import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.thread import StopFlag

from benchflow_sandbox_local.launcher_process.paths import make_directory, open_strict

_MAX_ENTRIES, _MAX_BYTES, _CHUNK = 1_000_000, 32 << 30, 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"


def unpack(archive: Path, cache: Path) -> Path:
    """Unpack an archive into `cache`, once; return the directory.

    Raises:
        SandboxError: A member is not a file, directory or link, or is outside of the root, or
            the archive is too large. Nothing of it stays in `cache` then.
    """
    digest = _digest(archive)
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / digest
    with _locked(cache / f".{digest}.lock"):
        if not target.is_dir():
            temporary = cache / f".{digest}.{secrets.token_hex(4)}"
            try:
                temporary.mkdir(mode=0o755)
                with tarfile.open(archive) as tar:
                    extract(tar, str(archive), temporary)
                temporary.rename(target)
            except (OSError, tarfile.TarError, ValueError) as error:
                raise SandboxError(f"cannot unpack {str(archive)!r}: {error}") from error
            finally:
                if temporary.exists():
                    shutil.rmtree(temporary)
    return target


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def extract(
    tar: tarfile.TarFile,
    source: str,
    target: Path,
    *,
    layer: bool = False,
    stop: StopFlag | None = None,
) -> None:
    """Unpack a root file system into the empty directory `target`.

    With `layer`, whiteouts become overlayfs whiteouts. Source: OCI image specification 1.1,
    `layer.md`.

    Raises:
        SandboxError: A member is refused, or there are too many members or bytes.
        OSError: A member cannot be written.
    """
    root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    directories: list[tuple[str, int]] = []
    total = 0
    try:
        for count, member in enumerate(tar):
            if stop is not None:
                stop.check()
            total += member.size
            if count >= _MAX_ENTRIES or total > _MAX_BYTES:
                raise SandboxError(
                    f"{source!r} has more than {_MAX_ENTRIES} members or {_MAX_BYTES >> 30} GiB"
                )
            parts = _parts(member.name)
            if parts and not (layer and _white_out(root, parts)):
                _member(tar, member, root, parts)
                if member.isdir():
                    directories.append(("/".join(parts), member.mode))
        # Last, because the members of a read-only directory could not be written.
        for path, mode in reversed(directories):
            place = open_strict(root, path, os.O_RDONLY | os.O_DIRECTORY)
            os.fchmod(place, mode & 0o1777)
            os.close(place)
    finally:
        os.close(root)


def _white_out(root: int, parts: list[str]) -> bool:
    """Create the overlayfs form of a whiteout member. Return False for another member."""
    name = parts[-1]
    if not name.startswith(_WHITEOUT):
        return False
    parent = make_directory(root, "/".join(parts[:-1]))
    try:
        if name == _OPAQUE:
            kind = "trusted" if os.geteuid() == 0 else "user"
            os.setxattr(f"/proc/self/fd/{parent}", f"{kind}.overlay.opaque", b"y")
        elif hidden := name.removeprefix(_WHITEOUT):
            _vacate(parent, hidden)
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
    finally:
        os.close(parent)
    return True


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in {"", "."}]
    if ".." in parts or name.startswith("/"):
        raise SandboxError(f"member {name!r} is outside of the root")
    return parts


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: list[str]) -> None:
    if parts[0] == "dev" and (member.ischr() or member.isblk() or member.isfifo()):
        return  # a sandbox has its own /dev
    parent = make_directory(root, "/".join(parts[:-1]))
    name = parts[-1]
    try:
        if member.isdir():
            os.close(make_directory(parent, name))
        elif member.isreg():
            _vacate(parent, name)
            _file(tar, member, parent, name)
        elif member.issym():
            _vacate(parent, name)
            os.symlink(member.linkname, name, dir_fd=parent)
        elif member.islnk():
            _vacate(parent, name)
            _hard_link(root, _parts(member.linkname), parent, name)
        else:
            raise SandboxError(f"member {member.name!r} is not a file, directory or link")
        if os.geteuid() == 0:
            ids = (member.uid, member.gid)
            os.chown(name, *ids, dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def _vacate(parent: int, name: str) -> None:
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(info.st_mode):
        raise SandboxError(f"member {name!r} would replace a directory")
    os.unlink(name, dir_fd=parent)


def _file(tar: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
    source = tar.extractfile(member)
    if source is None:
        raise SandboxError(f"member {member.name!r} has no content")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with source, os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as writer:
        shutil.copyfileobj(source, writer, _CHUNK)
        os.fchmod(writer.fileno(), member.mode & 0o777)
    os.utime(name, (member.mtime, member.mtime), dir_fd=parent)


def _hard_link(root: int, target: list[str], parent: int, name: str) -> None:
    if not target:
        raise SandboxError(f"member {name!r} links to the root")
    place = open_strict(root, "/".join(target[:-1]))
    try:
        if not stat.S_ISREG(os.stat(target[-1], dir_fd=place, follow_symlinks=False).st_mode):
            raise SandboxError(f"member {name!r} links to an entry that is not a regular file")
        os.link(target[-1], name, src_dir_fd=place, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(place)
