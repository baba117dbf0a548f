"""Pack the files of a build into archives for the engine."""

import asyncio
import io
import stat
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO, cast

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.recipe.context import ContextEntry
from benchflow_sandbox_core.shield import finish

from benchflow_sandbox_docker.engine import DockerEngine
from benchflow_sandbox_docker.labels import BUILT, KIND


def pack_texts(packed: IO[bytes], files: Mapping[str, str]) -> None:
    """Write files that root owns and that every user may read."""
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, text in files.items():
            _add_text(archive, path, text)


def pack_entries(
    packed: IO[bytes],
    entries: Sequence[ContextEntry],
    *,
    first: tuple[str, str] | None = None,
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Write entries of a context. Stop when `ended` returns true.

    `first` is a path and its text. It replaces the entry at that path and takes its permissions.
    """
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        if first is not None:
            _add_text(archive, *first, of=next((e for e in entries if e.path == first[0]), None))
        for entry in entries:
            if ended():
                return
            if first is None or entry.path != first[0]:
                _add(archive, entry)


def _add_text(
    archive: tarfile.TarFile, path: str, text: str, of: ContextEntry | None = None
) -> None:
    data = text.encode()
    member = tarfile.TarInfo(path.lstrip("/"))
    member.size = len(data)
    if of is not None:
        member.mode, member.mtime = of.mode, int(of.info.st_mtime)
    archive.addfile(member, io.BytesIO(data))


def _add(archive: tarfile.TarFile, entry: ContextEntry) -> None:
    member = tarfile.TarInfo(entry.path)
    member.mode, member.mtime = entry.mode, int(entry.info.st_mtime)
    if entry.is_directory:
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif entry.is_file:
        with entry.open() as file:
            member.size = entry.info.st_size
            archive.addfile(member, file)
    elif stat.S_ISLNK(entry.info.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
        archive.addfile(member)


IN_MEMORY = 16 << 20
"""The maximum bytes of an archive in memory. A larger archive goes to a file."""


@asynccontextmanager
async def beside(
    engine: DockerEngine, name: str, pack: Callable[[IO[bytes]], None]
) -> AsyncGenerator[None]:
    """Import the archive that `pack` writes as an image, which exists inside the block.

    Raises:
        SandboxError: The engine refused.
    """
    repository, tag = name.split(":")
    labels = [f"LABEL {KIND}={BUILT}"]
    try:
        with tempfile.SpooledTemporaryFile(IN_MEMORY) as packed:
            await finish(asyncio.to_thread(pack, cast("IO[bytes]", packed)))
            packed.seek(0)
            await engine.do(
                "import_image_from_data", packed, repository=repository, tag=tag, changes=labels
            )
        yield
    finally:
        # If this fails, `reap` finds the image by its label.
        with suppress(SandboxError):
            await finish(engine.do("remove_image", name))
