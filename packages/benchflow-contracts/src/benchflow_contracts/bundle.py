"""Read-only files and directories of the host that a sandbox contains."""

import hashlib
import os
from pathlib import Path
from typing import Self

from ._model import RareModel


class Bundle(RareModel):
    """A file or directory of the host that is read-only at `target` inside a sandbox.

    A provider on this host binds `source`. A cloud uploads or bakes the tree once for each `key`.
    """

    source: str
    """An absolute path of the host."""
    target: str
    """An absolute path inside."""
    key: str
    """A name of the bytes: two bundles with equal keys have equal trees."""

    @classmethod
    def of(cls, source: Path, target: Path) -> Self:
        """Return a bundle whose key is the digest of the tree. Reads every file."""
        return cls(source=str(source), target=str(target), key=f"sha256:{_digest(source)}")


def _digest(source: Path) -> str:
    digest = hashlib.sha256()
    for path in (source, *sorted(source.rglob("*"))):
        link = path.is_symlink() and path != source
        mode = path.lstat().st_mode if link else path.stat().st_mode
        head = f"{path.relative_to(source)}\0{mode:o}\0{path.readlink() if link else ''}\0"
        digest.update(os.fsencode(head))
        if not link and path.is_file():
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
