"""Where a rollout's files lie."""

import os
from pathlib import Path

from benchflow_contracts import RolloutTree, StoreError

from benchflow_kernel.tree import tree_to_bytes


def log_dir_of(directory: Path | None, start_id: str, *, child: bool) -> Path | None:
    """Return the directory that holds `agent/` and `verifier/` of one world."""
    if directory is None or not child:
        return directory
    return directory / "branches" / start_id


def write_tree(tree: RolloutTree, directory: Path) -> None:
    """Write `tree.json` whole or not at all.

    Raises:
        StoreError: It could not be written.
    """
    path = directory / "tree.json"
    temporary = directory / ".tree.json.part"
    try:
        with temporary.open("wb") as stream:
            stream.write(tree_to_bytes(tree))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be written: {error}") from error
