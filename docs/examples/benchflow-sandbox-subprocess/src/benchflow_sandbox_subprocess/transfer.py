"""Copies of regular files and directories, and of nothing else."""

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from uuid import uuid4

from benchflow_contracts import TransferError


def below(root: Path, remote: str) -> Path:
    """Map an absolute path of the sandbox to the host, without following links."""
    pure = PurePosixPath(remote)
    if not pure.is_absolute() or ".." in pure.parts:
        raise TransferError(f"{remote!r} is not an absolute path without `..`")
    path = root
    for part in pure.parts[1:]:
        path = path / part
        if path.is_symlink():
            raise TransferError(f"{remote!r} leads through a link")
    return path


def upload(local: Path, target: Path) -> None:
    """Merge `local` into `target`. Everything is checked before anything is copied."""
    entries = list(_entries(local))
    for source, name in entries:
        path = below(target, f"/{name}") if name else target
        if path.exists() and path.is_dir() != source.is_dir():
            raise TransferError(f"{str(name)!r} is a file on one side and a directory on the other")
    target.parent.mkdir(parents=True, exist_ok=True)
    _copy(entries, target)


def download(source: Path, local: Path, *, max_bytes: int, leave_out: bool) -> None:
    """Copy `source` to the new path `local`; on an error nothing is left there."""
    if os.path.lexists(local):
        raise TransferError(f"{str(local)!r} exists already")
    entries = list(_entries(source, leave_out=leave_out))
    total = sum(path.lstat().st_size for path, _ in entries if not path.is_dir())
    if total > max_bytes:
        raise TransferError(f"{total} bytes are more than the cap of {max_bytes}")
    staged = local.with_name(f".{uuid4().hex}")
    try:
        _copy(entries, staged)
        staged.rename(local)
    finally:
        if staged.is_dir():
            shutil.rmtree(staged)
        else:
            staged.unlink(missing_ok=True)


def _entries(top: Path, *, leave_out: bool = False) -> Iterator[tuple[Path, str]]:
    """Yield each file and directory with its name below `top`, parents first."""
    stack = [top]
    while stack:
        path = stack.pop()
        try:
            mode = path.lstat().st_mode
        except OSError as error:
            raise TransferError(f"{str(path)!r} cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            if leave_out and path != top:
                continue
            raise TransferError(f"{str(path)!r} is neither a regular file nor a directory")
        yield path, "" if path == top else path.relative_to(top).as_posix()
        if stat.S_ISDIR(mode):
            stack.extend(sorted(path.iterdir(), reverse=True))


def _copy(entries: list[tuple[Path, str]], target: Path) -> None:
    for source, name in entries:
        path = target / name if name else target
        if source.is_dir():
            path.mkdir(exist_ok=True)
        else:
            shutil.copyfile(source, path, follow_symlinks=False)
            path.chmod(source.stat().st_mode & 0o777)
