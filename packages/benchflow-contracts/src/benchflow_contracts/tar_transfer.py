"""Copies into and out of a sandbox that can only run commands, by `tar` inside the sandbox.

The sandbox needs `sh`, `tar`, `find`, `dd`, `head`, `mktemp` and `base64`. The host does not trust
the archive that a download returns, and checks each entry.
"""

import asyncio
import base64
import binascii
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO
from uuid import uuid4

from .cause import refuse_shortage
from .errors import TransferError
from .sandbox import Sandbox

_MAX_ENTRIES = 100_000
_PIECE_BYTES = 4 << 20
_HEADERS_BYTES = 64 << 20
"""The limit of headers and padding in an archive."""

# Without these options, GNU tar replaces a link to a directory, such as /lib, by a directory.
_UNPACK = """
merge=
if tar --help </dev/null 2>&1 | grep -q keep-directory-symlink; then
  merge='--keep-directory-symlink --no-overwrite-dir'
fi
exec tar -x $1 $merge -f - -C /
"""

_PACK = """
fail() { echo "$*" >&2; exit 1; }
path= rest=${1#/}/
[ "$1" = / ] || while [ -n "$rest" ]; do
  path=$path/${rest%%/*} rest=${rest#*/}
  [ ! -L "$path" ] || fail "$path is a link"
done
if [ -d "$1" ]; then from=$1 name=. kind=directory
elif [ -f "$1" ]; then from=${1%/*}/ name=./${1##*/} kind=file
elif [ -e "$1" ]; then fail "$1 is neither a regular file nor a directory"
else fail "nothing is at $1"; fi
if [ "$3" = 0 ]; then
  other=$(find "$1" ! -type f ! -type d) || exit 1
  [ -z "$other" ] || fail "neither a regular file nor a directory: $other"
fi
work=$(mktemp -d /tmp/benchflow.XXXXXX) || exit 1
{ tar -c -f - -C "$from" "$name"; echo $? >"$work/code"; } | head -c "$2" >"$work/tar"
echo "$work" "$kind" "$(cat "$work/code")" $(wc -c <"$work/tar")
"""


async def upload_by_tar(sandbox: Sandbox, local: Path, remote: str, owner: str | None) -> None:
    """Copy in; see `Sandbox.upload`. The archive must fit into memory.

    `owner=None`: the sandbox's default user runs `tar` and owns the files. Otherwise root runs it.
    """
    ids = (0, 0) if owner is None else await _ids_of(sandbox, owner)
    archive = await asyncio.to_thread(_pack, local, _checked(remote), ids)
    result = await sandbox.exec(
        ["/bin/sh", "-c", _UNPACK, "sh", "-o" if owner is None else ""],
        user=None if owner is None else "root",
        cwd="/",
        stdin=archive,
    )
    if not result.ok:
        raise TransferError(f"cannot upload to {remote!r}: {result.stderr[-500:].strip()}")


async def _ids_of(sandbox: Sandbox, owner: str) -> tuple[int, int]:
    user, _, group = owner.partition(":")
    if user.isdecimal():
        return int(user), int(group or user)
    if user == "root":
        return 0, 0
    result = await sandbox.exec(["/bin/sh", "-c", 'id -u "$1"; id -g "$1"', "sh", user], cwd="/")
    numbers = result.stdout.split()
    if len(numbers) != 2:
        raise TransferError(f"there is no user {user!r}")
    return int(numbers[0]), int(group) if group.isdecimal() else int(numbers[1])


def _checked(remote: str) -> PurePosixPath:
    path = PurePosixPath(remote)
    if not path.is_absolute() or ".." in path.parts:
        raise TransferError(f"{remote!r} is not an absolute path without `..`")
    return path


def _pack(local: Path, remote: PurePosixPath, ids: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    try:
        # Every `tar` can read the old GNU format.
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for path in _below(local):
                inside = remote / path.relative_to(local)
                if inside == PurePosixPath("/"):
                    continue
                entry = archive.gettarinfo(path, str(inside).lstrip("/"))
                if not (entry.isreg() or entry.isdir() or entry.islnk()):
                    raise TransferError(f"{str(path)!r} is neither a regular file nor a directory")
                entry.type = tarfile.DIRTYPE if entry.isdir() else tarfile.REGTYPE
                entry.uid, entry.gid = ids
                entry.uname = entry.gname = entry.linkname = ""
                if entry.isdir():
                    entry.mode = 0o755
                    archive.addfile(entry)
                else:
                    with path.open("rb") as file:
                        entry.size = os.fstat(file.fileno()).st_size
                        archive.addfile(entry, file)
    except OSError as error:
        refuse_shortage(f"read {str(local)!r}", error)
        raise TransferError(f"cannot read {str(local)!r}: {error}") from error
    return out.getvalue()


def _below(local: Path) -> Iterator[Path]:
    """Yield `local` and each entry below it, parents first. Links are not followed."""
    pending = [local]
    while pending:
        path = pending.pop()
        yield path
        if path.is_dir() and not path.is_symlink():
            pending += sorted(path.iterdir(), reverse=True)


async def download_by_tar(
    sandbox: Sandbox,
    remote: str,
    local: Path,
    *,
    max_bytes: int,
    leave_out: bool,
    user: str | None,
) -> None:
    """Copy out; see `Sandbox.download`. The archive is a temporary file below `/tmp` inside.

    A frozen sandbox cannot run `tar`, so a provider with a freeze needs another way.
    """
    path = str(_checked(remote))
    if os.path.lexists(local):  # noqa: ASYNC240 - takes no time
        raise TransferError(f"{str(local)!r} exists already")
    limit = max_bytes + _HEADERS_BYTES
    words = ["/bin/sh", "-c", _PACK, "sh", path, str(limit), str(int(leave_out))]
    result = await sandbox.exec(words, user=user, cwd="/")
    try:
        work, kind, code, size = result.stdout.split()
        count = int(size)
    except ValueError:
        why = result.stderr[-500:].strip() or "tar did not start"
        raise TransferError(f"cannot download {remote!r}: {why}") from None
    try:
        if count >= limit:
            raise TransferError(f"{remote!r} is larger than {max_bytes} bytes")
        if not result.ok or code != "0":
            raise TransferError(f"cannot download {remote!r}: {result.stderr[-500:].strip()}")
        with tempfile.TemporaryFile() as archive:
            await _fetch(sandbox, f"{work}/tar", count, archive, user)
            unpack = _Unpack(local, kind == "file", max_bytes, leave_out)
            await asyncio.to_thread(unpack.run, archive)
    finally:
        await sandbox.exec(["rm", "-rf", "--", work], user=user, cwd="/")


async def _fetch(sandbox: Sandbox, path: str, size: int, into: IO[bytes], user: str | None) -> None:
    piece = max(1, min(_PIECE_BYTES, sandbox.spec.limits.output_bytes // 2))
    read = 'dd if="$1" bs="$2" skip="$3" count=1 2>/dev/null | base64'
    for index in range(-(-size // piece)):
        words = ["/bin/sh", "-c", read, "sh", path, str(piece), str(index)]
        result = await sandbox.exec(words, user=user, cwd="/")
        try:
            into.write(base64.b64decode("".join(result.stdout.split()), validate=True))
        except binascii.Error as error:
            raise TransferError(f"the sandbox did not send its archive: {error}") from error
    if into.tell() != size:
        raise TransferError(f"the sandbox sent {into.tell()} of {size} bytes of its archive")
    into.seek(0)


class _Unpack:
    """Unpacks an untrusted archive to a new path. After an error, nothing is left."""

    def __init__(self, local: Path, is_file: bool, max_bytes: int, leave_out: bool) -> None:
        self._local = local
        self._is_file = is_file
        self._left = max_bytes
        self._leave_out = leave_out
        self._staged = local.with_name(f".{uuid4().hex}")
        self._files: dict[PurePosixPath, Path] = {}

    def run(self, archive: IO[bytes]) -> None:
        """Unpack the archive; raise `TransferError` if an entry is refused."""
        try:
            with tarfile.open(fileobj=archive, mode="r:") as tar:
                for count, member in enumerate(tar):
                    if count >= _MAX_ENTRIES:
                        raise TransferError(f"more than {_MAX_ENTRIES} entries")
                    self._add(tar, member)
            self._staged.rename(self._local)
        except (tarfile.TarError, OSError, ValueError) as error:
            if isinstance(error, OSError):
                refuse_shortage(f"write {str(self._local)!r}", error)
            raise TransferError(f"the sandbox sent a bad archive: {error}") from error
        finally:
            shutil.rmtree(self._staged, ignore_errors=True)
            self._staged.unlink(missing_ok=True)

    def _add(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise TransferError(f"the archive names {member.name!r}")
        target = self._staged if self._is_file else self._staged / name
        if member.isdir() and not self._is_file:
            target.mkdir()
        elif member.isreg() and (source := tar.extractfile(member)) is not None:
            with source:
                self._write(source, member, target)
            self._files[name] = target
        elif (linked := self._files.get(PurePosixPath(member.linkname))) and member.islnk():
            # A hard link: `tar` sends the bytes of a file with its first name only.
            member.size, member.mode = linked.stat().st_size, linked.stat().st_mode
            with linked.open("rb") as source:
                self._write(source, member, target)
            self._files[name] = target
        elif not self._leave_out or self._is_file:
            raise TransferError(f"{member.name!r} is neither a regular file nor a directory")

    def _write(self, source: IO[bytes], member: tarfile.TarInfo, target: Path) -> None:
        self._left -= member.size
        if self._left < 0:
            raise TransferError(f"{str(self._local)!r} would be larger than allowed")
        with target.open("xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        target.chmod(member.mode & 0o777 | 0o600)
