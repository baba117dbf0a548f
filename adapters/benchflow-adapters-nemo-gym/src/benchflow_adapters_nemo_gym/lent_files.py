"""Files of a lent sandbox, read and written with the rights of its user.

`Sandbox.upload` and `Sandbox.download` have the rights of root, which a borrower does not have.
"""

import asyncio
from pathlib import Path
from typing import Final

from benchflow_contracts import ByteReader, Process, Sandbox, SandboxError, TransferError

_WRITE: Final = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
_READ: Final = (
    'if [ -L "$1" ] || [ ! -f "$1" ]; then echo "not a regular file" >&2; exit 1; fi; cat -- "$1"'
)
_CHUNK: Final = 1 << 20
_MESSAGE_BYTES: Final = 500


async def write_as_user(sandbox: Sandbox, path: str, local: Path) -> None:
    """Write a file of the host to `path`. Missing directories are created.

    Raises:
        TransferError: The user may not write the file.
    """
    process = await sandbox.spawn(["sh", "-c", _WRITE, "sh", path])
    try:
        async with asyncio.TaskGroup() as tasks:
            errors = tasks.create_task(_read_start(process.stderr))
            tasks.create_task(_read_start(process.stdout))
            tasks.create_task(_feed(process, local))
        await _check(process, errors.result(), path)
    finally:
        await process.aclose()


async def read_as_user(sandbox: Sandbox, path: str, local: Path, max_bytes: int) -> None:
    """Write a regular file of the sandbox to `local`. A link is refused.

    Raises:
        TransferError: The user may not read the file, or the file is larger than `max_bytes`.
    """
    process = await sandbox.spawn(["sh", "-c", _READ, "sh", path])
    try:
        await process.stdin.aclose()
        async with asyncio.TaskGroup() as tasks:
            errors = tasks.create_task(_read_start(process.stderr))
            is_whole = tasks.create_task(_save(process, local, max_bytes))
        if not is_whole.result():
            raise TransferError(f"{path!r:.300} is larger than {max_bytes} bytes")
        await _check(process, errors.result(), path)
    finally:
        await process.aclose()


async def _feed(process: Process, local: Path) -> None:
    try:
        with local.open("rb") as file:
            while chunk := file.read(_CHUNK):
                await process.stdin.write(chunk)
        await process.stdin.aclose()
    except SandboxError:
        # The command ended early. Its exit code and its error output say why.
        return


async def _save(process: Process, local: Path, max_bytes: int) -> bool:
    """Save the output; return whether all of it is there. A file may have no end."""
    size = 0
    with local.open("wb") as file:
        while chunk := await process.stdout.read(_CHUNK):
            size += len(chunk)
            if size > max_bytes:
                await process.kill()
                return False
            file.write(chunk)
    return True


async def _read_start(stream: ByteReader) -> str:
    """Read a stream to its end; return the start of its text."""
    start = b""
    while chunk := await stream.read():
        start += chunk[: _MESSAGE_BYTES - len(start)]
    return start.decode(errors="replace").strip()


async def _check(process: Process, errors: str, path: str) -> None:
    if await process.wait() != 0:
        raise TransferError(f"cannot access {path!r:.300} as the sandbox's user: {errors}")
