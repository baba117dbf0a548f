"""Copies between real local files and the files of a fake sandbox."""

import stat
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.errors import TransferError

from .file_system import FakeFileSystem


@dataclass(frozen=True, slots=True)
class _Item:
    """One file or directory to copy. `data` is `None` for a directory."""

    name: str
    mode: int
    data: bytes | None


def upload(files: FakeFileSystem, local: Path, remote: str, *, user: str) -> None:
    """Copy `local` to `remote`. If a file is refused, change nothing."""
    items = _local_items(local)
    for item in items:
        path = f"{remote}/{item.name}" if item.name else remote
        entry = files.entry(path)
        if entry is not None and (entry.kind == "dir") != (item.data is None):
            raise TransferError(f"{path!r} exists and is a {entry.kind}")
    for item in items:
        path = f"{remote}/{item.name}" if item.name else remote
        if item.data is None:
            known, mode = files.exists(path), item.mode if item.name else 0o755
            files.mkdir(path, owner=user, mode=mode, parents=True)
            if not known:
                files.chmod(path, mode)
        else:
            files.put(path, item.data, user=user, mode=item.mode)


def _local_items(local: Path) -> list[_Item]:
    try:
        status = local.lstat()
    except OSError as error:
        raise TransferError(
            f"{str(local)!r} cannot be read: {error.strerror}", caused_by="unknown"
        ) from error
    if stat.S_ISREG(status.st_mode):
        return [_Item("", status.st_mode & 0o777, local.read_bytes())]
    if not stat.S_ISDIR(status.st_mode):
        raise TransferError(f"{str(local)!r} is neither a regular file nor a directory")
    items = [_Item("", status.st_mode & 0o777, None)]
    for path in sorted(local.rglob("*")):
        mode = path.lstat().st_mode
        name = path.relative_to(local).as_posix()
        if stat.S_ISREG(mode):
            items.append(_Item(name, mode & 0o777, path.read_bytes()))
        elif stat.S_ISDIR(mode):
            items.append(_Item(name, mode & 0o777, None))
        else:
            raise TransferError(f"{str(path)!r} is neither a regular file nor a directory")
    return items


def download(
    files: FakeFileSystem, remote: str, local: Path, *, max_bytes: int, leave_out: bool
) -> None:
    """Copy `remote` to `local`. If a file is refused, write nothing."""
    if local.exists() or local.is_symlink():
        raise TransferError(f"{str(local)!r} already exists")
    items = _remote_items(files, remote, leave_out=leave_out)
    total = sum(len(item.data or b"") for item in items)
    if total > max_bytes:
        raise TransferError(f"{remote!r} has {total} bytes, more than the limit of {max_bytes}")
    local.parent.mkdir(parents=True, exist_ok=True)
    for item in items:
        path = local / item.name if item.name else local
        if item.data is None:
            path.mkdir()
        else:
            path.write_bytes(item.data)


def _remote_items(files: FakeFileSystem, remote: str, *, leave_out: bool) -> list[_Item]:
    where = "/" + "/".join(part for part in remote.split("/") if part not in {"", "."})
    if files.resolve(remote) != where:
        raise TransferError(f"{remote!r} leads through a link or a `..`")
    items: list[_Item] = []
    for path in [where, *files.below(where)]:
        entry = files.entry(path, follow=False)
        if entry is None:
            raise TransferError(f"{remote!r} does not exist in the sandbox")
        if entry.kind not in {"file", "dir"}:
            if leave_out and path != where:
                continue
            raise TransferError(f"{path!r} is a {entry.kind}")
        name = path[len(where) :].lstrip("/")
        items.append(_Item(name, entry.mode, None if entry.kind == "dir" else entry.data))
    return items
