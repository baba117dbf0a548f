"""The files of a rollout, as artifacts in the evidence store of its job."""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from benchflow_contracts import EvidenceStore, FileRef, StoreError
from benchflow_store.database import (
    ARTIFACTS_DIR,
    LocalEvidenceStore,
    ObjectEvidenceStore,
)

from .planning.job_config import EvidenceConfig

_FILES: Final = {
    "inputs": ("config.json", "prompts.json"),
    "outputs": ("result.json", "tree.json", "rewards.jsonl", "trajectory/*.jsonl"),
    "logs": ("agent/*", "verifier/test-stdout.txt"),
}
"""Globs in the directory of a rollout, by the part that their files have in the attempt."""
_MOST_FILES: Final = 64
_MOST_SENT: Final = 4096
_MOST_BYTES: Final = 32 << 20
_LAST: Final = "result.json"
"""The file that says that all others are complete."""
_PRIVATE: Final = "config.json"
_NOT_SENT: Final = "checkpoints"
"""The directory of saved checkpoints. They belong to the host that made them."""


def evidence_of(config: EvidenceConfig, directory: Path) -> EvidenceStore | None:
    """Return the evidence store of a job, or `None` if the job has none.

    Raises:
        UsageError: The URL cannot be used, or obstore is not installed.
    """
    if config.url is not None:
        return ObjectEvidenceStore(config.url)
    return LocalEvidenceStore(directory / ARTIFACTS_DIR) if config.store else None


async def store_files(store: EvidenceStore, directory: Path) -> list[FileRef]:
    """Store the main files of the rollout in `directory`, and return their references.

    A role is such as `outputs/tree.json`. Links, missing files, files over 32 MiB and what follows
    after 64 files are left out.

    Raises:
        StoreError: A file cannot be read, or its artifact cannot be stored.
    """
    return await _store(store, await asyncio.to_thread(lambda: list(_main_files(directory))))


async def store_directory(store: EvidenceStore, directory: Path) -> list[FileRef]:
    """Store the files of the rollout in `directory`, and return their references.

    The roles of the main files are those of `store_files`; that of another file is such as
    `other/timing.json`. Links, checkpoints, files over 32 MiB and what follows after 4,096 files
    are left out.

    Raises:
        StoreError: A file cannot be read, or its artifact cannot be stored.
    """
    return await _store(store, await asyncio.to_thread(lambda: list(_sent_files(directory))))


async def fetch_files(store: EvidenceStore, files: Iterable[FileRef], directory: Path) -> None:
    """Write the files of a rollout into `directory`, which is created; `result.json` last.

    Raises:
        StoreError: An artifact is missing or damaged, a path leads out of the directory, or a
            file cannot be written.
    """
    paths = {_path_of(each): each for each in files}
    for path in sorted(paths, key=lambda path: (path.name == _LAST, path)):
        data = await store.get(paths[path].sha256)
        try:
            await asyncio.to_thread(_write, directory / path, data)
        except OSError as error:
            raise StoreError(f"cannot write {str(directory / path)!r}: {error.strerror}") from error


def _path_of(file: FileRef) -> PurePosixPath:
    """Return the path of a file in its rollout's directory. Names come from another host."""
    path = PurePosixPath(file.role.partition("/")[2])
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in file.role:
        raise StoreError(f"not a path in the directory of a rollout: {file.role!r}")
    return path


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name == _PRIVATE:
        path.touch(mode=0o600)
    path.write_bytes(data)


async def _store(store: EvidenceStore, files: Iterable[tuple[str, Path]]) -> list[FileRef]:
    refs: list[FileRef] = []
    for role, path in files:
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
        refs.append(FileRef(role=role, sha256=await store.put(data), size=len(data)))
    return refs


def _sent_files(directory: Path) -> Iterator[tuple[str, Path]]:
    real = directory.resolve()
    main = dict(_main_files(directory))
    known = {*main.values()}
    others = (
        (f"other/{path.relative_to(real).as_posix()}", path)
        for path in sorted(real.rglob("*"))
        if path.relative_to(real).parts[0] != _NOT_SENT and path not in known and _is_taken(path)
    )
    yield from main.items()
    for each, _ in zip(others, range(_MOST_SENT - len(main)), strict=False):
        yield each


def _is_taken(path: Path) -> bool:
    return path.is_file() and path.resolve() == path and path.stat().st_size <= _MOST_BYTES


def _main_files(directory: Path) -> Iterator[tuple[str, Path]]:
    real = directory.resolve()
    chosen = (
        (part, path)
        for part, globs in _FILES.items()
        for glob in globs
        for path in sorted(real.glob(glob))
        if _is_taken(path)
    )
    for (part, path), _ in zip(chosen, range(_MOST_FILES), strict=False):
        yield f"{part}/{path.relative_to(real).as_posix()}", path
