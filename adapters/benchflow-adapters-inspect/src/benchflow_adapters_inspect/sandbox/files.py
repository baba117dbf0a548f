"""Files of a sandbox, read and written by shell commands inside.

The commands run as the sandbox's default user, so the rights of that user hold. They find their
programs in the system directories, whatever `PATH` the image sets.
"""

# mypy: disable-error-code="import-not-found"
# pyright: basic, reportMissingImports=false
import base64
import binascii
import errno
import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from benchflow_contracts import ExecResult, Sandbox, SandboxError, SandboxTimeoutError
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
)

_SYSTEM_PATH = "PATH=/usr/bin:/bin:/usr/sbin:/sbin; export PATH; "
_CHUNK = 6 * 1024 * 1024
"""Bytes of one command's answer. Base64 makes them longer, below the limit of the output."""

_WRITE = _SYSTEM_PATH + (
    '[ -d "$1" ] && exit 21; mkdir -p -- "$2" || exit 13; '
    'if [ -e "$1" ] && [ ! -w "$1" ]; then exit 13; fi; '
    'cat 2>/dev/null > "$1"'
)
_READ = _SYSTEM_PATH + (
    '[ -d "$1" ] && exit 21; '
    '[ -e "$1" ] || exit 2; [ -f "$1" ] || exit 22; [ -r "$1" ] || exit 13; '
    'wc -c < "$1" && tail -c "+$2" -- "$1" | head -c "$3" | base64'
)
_ERRORS = {
    2: (errno.ENOENT, "No such file or directory."),
    13: (errno.EACCES, "Permission denied."),
    21: (errno.EISDIR, "Is a directory."),
    22: (errno.EINVAL, "Not a regular file."),
}
_TIMEOUT_SEC = 600.0
_LONG_COMMAND = 256 * 1024
"""Characters. A sandbox takes commands of up to 1 MiB, with their variables."""


async def write(sandbox: Sandbox, path: str, contents: bytes) -> None:
    """Write a file. Missing parents are created.

    Raises:
        TimeoutError: The write took more than ten minutes.
        PermissionError: The default user may not write to `path`.
        IsADirectoryError: `path` is a directory.
        RuntimeError: The command failed in another way.
    """
    parent = path.rpartition("/")[0] or "/"
    done = await _run(sandbox, _WRITE, path, parent, stdin=contents)
    if done.exit_code in _ERRORS:
        raise _error(done.exit_code, path)
    if done.exit_code != 0 and "permission denied" in done.stderr.casefold():
        raise _error(13, path)
    if done.exit_code != 0:
        raise RuntimeError(f"failed to write {path!r}: exit code {done.exit_code}: {done.stderr}")


async def read(sandbox: Sandbox, path: str, *, shown: str) -> bytes:
    """Return the contents of a regular file. Errors name the path `shown`.

    A file of more than 6 MiB is read by several commands, and must not change meanwhile.

    Raises:
        TimeoutError: One command took more than ten minutes.
        FileNotFoundError: `path` does not exist.
        PermissionError: The default user may not read it.
        IsADirectoryError: It is a directory.
        OutputLimitExceededError: It is larger than Inspect's limit.
        OSError: It is not a regular file, or it changed while it was read.
    """
    limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
    contents = bytearray()
    while True:
        size, chunk = await _read_chunk(sandbox, path, shown, len(contents))
        if size > limit:
            raise OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None
            )
        contents += chunk
        if len(contents) >= size:
            break
        if not chunk:
            raise OSError(errno.EIO, "The file changed while it was read.", shown)
    if len(contents) != size:
        raise OSError(errno.EIO, "The file changed while it was read.", shown)
    return bytes(contents)


@asynccontextmanager
async def short_command(sandbox: Sandbox, cmd: Sequence[str]) -> AsyncGenerator[Sequence[str]]:
    """Yield a command that does what `cmd` does, and is short enough for the sandbox.

    A long command becomes a script inside, which any user can read, and which is deleted at the
    end of the block.
    """
    if sum(map(len, cmd)) < _LONG_COMMAND:
        yield cmd
        return
    script = f"/tmp/inspect-{uuid4().hex}"  # noqa: S108 - a path of the sandbox
    await write(sandbox, script, f"exec {shlex.join(cmd)}\n".encode())
    try:
        await _run(sandbox, _SYSTEM_PATH + 'chmod 644 -- "$1"', script)
        yield ["/bin/sh", script]
    finally:
        await _run(sandbox, _SYSTEM_PATH + 'rm -f -- "$1"', script)


async def _read_chunk(sandbox: Sandbox, path: str, shown: str, offset: int) -> tuple[int, bytes]:
    done = await _run(sandbox, _READ, path, str(offset + 1), str(_CHUNK))
    if done.exit_code in _ERRORS:
        raise _error(done.exit_code, shown)
    if done.exit_code != 0:
        raise RuntimeError(f"failed to read {shown!r}: exit code {done.exit_code}: {done.stderr}")
    head, _, body = done.stdout.partition("\n")
    try:
        return int(head), base64.b64decode(body)
    except (ValueError, binascii.Error) as error:
        raise RuntimeError(f"failed to read {shown!r}: an answer is not base64") from error


async def _run(sandbox: Sandbox, script: str, *args: str, stdin: bytes = b"") -> ExecResult:
    command = ["/bin/sh", "-c", script, "sh", *args]
    try:
        return await sandbox.exec(command, stdin=stdin, timeout=_TIMEOUT_SEC)
    except SandboxTimeoutError as error:
        raise TimeoutError(str(error)) from error
    except SandboxError as error:
        raise SandboxUnavailableError(str(error)) from error


def _error(code: int, path: str) -> OSError:
    number, text = _ERRORS[code]
    return OSError(number, text, path)
