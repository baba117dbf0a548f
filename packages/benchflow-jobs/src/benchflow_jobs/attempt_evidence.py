"""The main files of a rollout, as artifacts in the evidence store of its job."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchflow_contracts import EvidenceStore, StoreError
from benchflow_store.database import ArtifactRef

_FILES: Final = {
    "inputs": ("config.json", "prompts.json"),
    "outputs": ("result.json", "tree.json", "rewards.jsonl", "trajectory/*.jsonl"),
    "logs": ("agent/*", "verifier/test-stdout.txt"),
}
"""Globs in the directory of a rollout, by the part that their files have in the attempt."""
_MOST_FILES: Final = 64
_MOST_BYTES: Final = 32 << 20


async def store_files(store: EvidenceStore, directory: Path) -> list[ArtifactRef]:
    """Store the main files of the rollout in `directory`, and return their references.

    A role is such as `outputs/tree.json`. Links, missing files, files over 32 MiB and what follows
    after 64 files are left out.

    Raises:
        StoreError: A file cannot be read, or its artifact cannot be stored.
    """
    refs: list[ArtifactRef] = []
    for role, path in await asyncio.to_thread(lambda: list(_main_files(directory))):
        try:
            data = await asyncio.to_thread(path.read_bytes)
        except OSError as error:
            raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
        refs.append(ArtifactRef(role=role, sha256=await store.put(data), size=len(data)))
    return refs


def _main_files(directory: Path) -> Iterator[tuple[str, Path]]:
    real = directory.resolve()
    chosen = (
        (part, path)
        for part, globs in _FILES.items()
        for glob in globs
        for path in sorted(real.glob(glob))
        if path.is_file() and path.resolve() == path and path.stat().st_size <= _MOST_BYTES
    )
    for (part, path), _ in zip(chosen, range(_MOST_FILES), strict=False):
        yield f"{part}/{path.relative_to(real).as_posix()}", path
