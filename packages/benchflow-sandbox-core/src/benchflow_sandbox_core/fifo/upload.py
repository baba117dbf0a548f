"""Copy from the host into a sandbox, with a program of the guest."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import HostError, SandboxError, TransferError, host_error
from benchflow_sandbox_native import guest as frames

from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.upload_entries import UploadEntry, scan

from .connections import FifoBox
from .programs import run

_CHUNK = 1 << 20
_FULL = "no space left on device"
_MAX_PATH = 4095


@dataclass(frozen=True, slots=True)
class UploadItem:
    """The content of one path."""

    path: str
    mode: int
    content: bytes | UploadEntry | None
    """`None` for a directory."""

    @classmethod
    def directory(cls, path: str, mode: int = 0o755) -> "UploadItem":
        """Return a directory. An existing directory stays as it is."""
        return cls(path, mode, None)

    @classmethod
    def file(cls, path: str, start: bytes, end: str) -> "UploadItem":
        """Return a readable file that contains `start` and `end`."""
        return cls(path, 0o644, start + end.encode())


async def upload(guest: FifoBox, uid: int, gid: int, local: Path, remote: str) -> None:
    """Copy a regular file or a directory tree in.

    Raises:
        TransferError: An entry was refused, or the transfer failed.
        HostError: The host could not read a file.
    """
    target = absolute(remote)
    entries = await asyncio.to_thread(lambda: list(scan(local)))
    items = [_item(target, entry) for entry in entries]
    await put(guest, uid, gid, items)


def _item(target: str, entry: UploadEntry) -> UploadItem:
    if not entry.relative and entry.is_directory:
        # Its entries are merged into the target directory, which is created if missing.
        return UploadItem.directory(target)
    path = f"{target.rstrip('/')}/{entry.relative}" if entry.relative else target
    return UploadItem(path, entry.mode, None if entry.is_directory else entry)


async def put(guest: FifoBox, uid: int, gid: int, items: Iterable[UploadItem]) -> None:
    """Write files and directories for one owner, in order.

    Raises:
        TransferError: An item was refused or failed. Earlier items are written.
        HostError: The host could not read an item. Earlier items are written.
    """
    failed: list[SandboxError] = []

    async def feed() -> AsyncIterator[bytes]:
        try:
            for item in items:
                async for data in _encode(item):
                    yield data
            yield frames.encode_end()
        except SandboxError as error:
            failed.append(error)  # the program inside sees the end of its input

    result = await run(guest, "put", str(uid), str(gid), feed=feed())
    if failed:
        raise failed[0]
    if result.code:
        why = result.err.decode("utf-8", "replace")
        if _FULL in why.lower():
            raise HostError(f"cannot upload: {why}", hint="free space on the disk of the sandbox")
        raise TransferError(f"cannot upload: {why or f'the program ended with {result.code}'}")


async def _encode(item: UploadItem) -> AsyncIterator[bytes]:
    path = item.path.encode("utf-8", "surrogateescape")
    if len(path) > _MAX_PATH:
        raise TransferError(f"the path {item.path[:200]!r} is too long")
    if item.content is None:
        yield frames.encode_directory(path, item.mode)
    elif isinstance(item.content, bytes):
        yield frames.encode_file(path, item.mode, len(item.content)) + item.content
    else:
        async for data in _encode_file(path, item.mode, item.content):
            yield data


async def _encode_file(path: bytes, mode: int, entry: UploadEntry) -> AsyncIterator[bytes]:
    try:
        with entry.open() as file:
            left = os.fstat(file.fileno()).st_size
            yield frames.encode_file(path, mode, left)
            while left:
                data = await asyncio.to_thread(file.read, min(left, _CHUNK))
                if not data:
                    raise TransferError(
                        f"{str(entry.path)!r} shrinks while it is read", caused_by="unknown"
                    )
                left -= len(data)
                yield data
    except OSError as error:
        raise host_error(f"read {str(entry.path)!r}", error) from error
