"""Copy files out of a remote sandbox."""

import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from benchflow_contracts.errors import TransferError
from benchflow_sandbox_core.archive_download import ArchiveDownload
from benchflow_sandbox_core.fifo.connections import FifoBox
from benchflow_sandbox_core.fifo.programs import run
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.thread import StopFlag
from benchflow_sandbox_core.thread import run as run_in_thread

_CHUNK = 1 << 20
_HEADERS = 128 << 20
"""The limit of the bytes of an archive besides the content of its files."""


async def download(
    guest: FifoBox, remote: str, local: Path, *, max_bytes: int, leave_out: bool
) -> None:
    """Copy a file or a tree to a new local path, by a program of the guest.

    Raises:
        TransferError: The path is refused, missing or too big. `local` does not exist then.
        HostError: The host could not write. `local` does not exist then.
    """
    path, taken = absolute(remote), 0
    with tempfile.TemporaryFile() as archive:

        def write(data: bytes) -> None:
            nonlocal taken
            taken += len(data)
            if taken > max_bytes + _HEADERS:
                raise TransferError(f"{remote!r} is larger than {max_bytes} bytes")
            archive.write(data)

        result = await run(guest, "pack", path, str(max_bytes), str(int(leave_out)), sink=write)
        if result.code:
            why = result.err.decode("utf-8", "replace").strip()
            raise TransferError(f"cannot download {remote!r}: {why or f'code {result.code}'}")

        def unpack(stop: StopFlag) -> None:
            copy = ArchiveDownload(_FileArchive(archive), max_bytes, stop, leave_out=leave_out)
            copy.run(path, local)

        await run_in_thread(unpack)


class _FileArchive:
    """An archive that was read already. The guest has refused links on the way to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def is_link(self, path: str) -> bool:
        del path
        return False

    @contextmanager
    def tar(self, path: str) -> Generator[Iterator[bytes]]:
        del path
        self._file.seek(0)
        yield iter(lambda: self._file.read(_CHUNK), b"")
