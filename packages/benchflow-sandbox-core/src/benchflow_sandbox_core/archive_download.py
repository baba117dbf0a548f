"""Copy an archive of a sandbox to the host. Names, kinds, sizes and depth inside are hostile."""

import os
import secrets
import tarfile
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Protocol, Self, cast

from benchflow_contracts.errors import TransferError

from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.thread import StopFlag
from benchflow_sandbox_core.transfer_errors import discard, transfer_error

_CHUNK = 1 << 20
_MAX_ENTRIES, _MAX_DEPTH = 100_000, 64
_COPIED = frozenset({tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.LNKTYPE})
_ATTRIBUTES = frozenset(
    {
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    }
)
_MAX_ATTRIBUTES = 1 << 20
_CLASHES = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
_OVERHEAD = 4096
"""Maximum bytes of an archive for each entry, besides the content."""


class Archive(Protocol):
    """Reads the files of one sandbox."""

    def is_link(self, path: str) -> bool:
        """Return whether `path` is a symbolic link. Raise `TransferError` if it does not exist."""
        ...

    def tar(self, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """Yield a tar of `path` in pieces. A link at `path` itself is not followed."""
        ...


class ArchiveDownload:
    """Copies one file or tree to a new local path. If this fails, the path does not exist.

    If the archive can be read while the sandbox is paused, so can this.
    """

    def __init__(
        self, archive: Archive, max_bytes: int, stop: StopFlag, *, leave_out: bool = False
    ) -> None:
        self._archive = archive
        self._left = self._max_bytes = max_bytes
        self._entries = 0
        self._stop = stop
        self._leave_out = leave_out

    def run(self, remote: str, local: Path) -> None:
        """Copy `remote` to `local`, which must not exist.

        Raises:
            TransferError: The path is refused, missing, or too big. `local` does not exist then.
            HostError: The host could not write. `local` does not exist then.
        """
        if os.path.lexists(local):
            raise TransferError(f"{str(local)!r} already exists; name a new path")
        path = absolute(remote)
        self._refuse_links_on_the_way(path)
        temporary = local.with_name(f".{local.name}.{secrets.token_hex(6)}")
        try:
            local.parent.mkdir(parents=True, exist_ok=True)
            self._unpack(path, temporary, remote)
            temporary.rename(local)
        except BaseException as error:
            discard(temporary)
            if isinstance(error, OSError | MemoryError):
                raise transfer_error(f"download {remote!r}", error) from error
            # tarfile raises the other ones for a header with wrong fields.
            if isinstance(error, tarfile.TarError | ValueError | LookupError | RecursionError):
                raise TransferError(f"cannot download {remote!r}: {error}") from error
            raise

    def _refuse_links_on_the_way(self, path: str) -> None:
        """Follow only links that root inside owns, because the image may contain such links."""
        parents = [str(each) for each in reversed(PurePosixPath(path).parents)][1:]
        for parent in parents:
            if not self._archive.is_link(parent):
                continue
            with self._open(parent) as stream:
                member = stream.next()
            if member is None or member.uid != 0:
                raise TransferError(f"{path!r} goes through a link at {parent!r}")

    @contextmanager
    def _open(self, path: str) -> Generator[tarfile.TarFile]:
        with self._archive.tar(path) as pieces:
            source = cast("IO[bytes]", _Pieces(pieces, self._check))
            with tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as stream:
                yield stream

    def _check(self, taken: int) -> None:
        self._stop.check()
        if taken > self._max_bytes + (self._entries + 64) * _OVERHEAD + (1 << 20):
            raise TransferError(f"the archive exceeds the limit of {self._max_bytes} bytes")

    def _unpack(self, path: str, target: Path, shown: str) -> None:
        with self._open(path) as stream:
            top: str | None = None
            for member in stream:
                stream.members = []  # type: ignore[attr-defined]  # a hostile archive has many
                self._entries += 1
                parts = PurePosixPath(member.name).parts
                if top is None:
                    top = parts[0] if parts else "/"
                self._refuse(parts, top, shown)
                if member.type not in _COPIED and self._leave_out and len(parts) > 1:
                    continue
                self._refuse_kind(member, parts, shown)
                try:
                    self._entry(stream, member, target.joinpath(*parts[1:]), target, shown)
                except _CLASHES as error:
                    raise TransferError(
                        f"{shown!r}: an entry does not fit the other ones: {error.strerror}"
                    ) from error

    def _refuse(self, parts: tuple[str, ...], top: str, shown: str) -> None:
        where = f"{shown}/{'/'.join(parts[1:])}".rstrip("/")
        if self._entries > _MAX_ENTRIES or len(parts) > _MAX_DEPTH:
            limit = f"{_MAX_ENTRIES} entries or {_MAX_DEPTH} levels"
            raise TransferError(f"{where[:200]!r}: the tree has more than {limit}")
        if parts and (parts[0] != top or ".." in parts or "\0" in where):
            raise TransferError(f"{where[:200]!r} is outside of the requested path")

    def _refuse_kind(self, member: tarfile.TarInfo, parts: tuple[str, ...], shown: str) -> None:
        if member.type not in _COPIED:
            where = f"{shown}/{'/'.join(parts[1:])}".rstrip("/")
            raise TransferError(f"{where[:200]!r} is neither a regular file nor a directory")

    def _entry(
        self, stream: tarfile.TarFile, member: tarfile.TarInfo, to: Path, target: Path, shown: str
    ) -> None:
        if member.type == tarfile.DIRTYPE:
            to.mkdir(mode=0o755)
            return
        if member.type == tarfile.LNKTYPE:
            # A second name of an earlier file. The copies are two files.
            first = target.joinpath(*PurePosixPath(member.linkname).parts[1:])
            if ".." in PurePosixPath(member.linkname).parts or not first.is_file():
                raise TransferError(f"{shown!r} contains a hard link to a file outside of it")
            reader: IO[bytes] | None = first.open("rb")
        else:
            # Holes arrive as zeros, so refuse a file that is too big before it is written.
            if member.size > self._left:
                raise self._too_big(shown)
            reader = stream.extractfile(member)
        assert reader is not None
        with reader:
            self._file(reader, to, member.mode, shown)

    def _file(self, reader: IO[bytes], to: Path, mode: int, shown: str) -> None:
        writer = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while chunk := reader.read(_CHUNK):
                self._left -= len(chunk)
                if self._left < 0:
                    raise self._too_big(shown)
                view = memoryview(chunk)
                while view:
                    view = view[os.write(writer, view) :]
            os.fchmod(writer, 0o755 if mode & 0o111 else 0o644)
        finally:
            os.close(writer)

    def _too_big(self, shown: str) -> TransferError:
        return TransferError(f"{shown!r} exceeds the limit of {self._max_bytes} bytes")


class _Member(tarfile.TarInfo):
    """A member whose header is checked before `tarfile` reads its bytes into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header.

        Raises:
            TransferError: A name, or a set of attributes, is too long.
        """
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in _ATTRIBUTES and member.size > _MAX_ATTRIBUTES):
            raise TransferError(f"the header of an entry has {member.size} bytes")
        return member


class _Pieces:
    """A readable file over the pieces of an iterator."""

    def __init__(self, pieces: Iterator[bytes], check: Callable[[int], None]) -> None:
        self._pieces = pieces
        self._check = check
        self._held = bytearray()
        self._taken = 0

    def read(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end."""
        while len(self._held) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._taken += len(piece)
            self._check(self._taken)
            self._held += piece
        data = bytes(self._held[:size])
        del self._held[:size]
        return data
