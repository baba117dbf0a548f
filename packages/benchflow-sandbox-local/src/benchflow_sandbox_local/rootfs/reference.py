"""From an image reference to a directory on the host."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts.errors import SandboxUnsupportedError

from .archive import unpack


@dataclass(frozen=True, slots=True)
class RootSource:
    """What a root file system is made from."""

    path: Path | None
    """`None` is the host's own root."""
    complete: bool
    """Whether it has a shell of its own; otherwise it is a layer over the host's root."""

    @classmethod
    def of(cls, path: Path | None) -> "RootSource":
        """Return the source of a directory that `resolve` found, `None` for the host's root."""
        if path is None:
            return cls(None, complete=True)
        shells = ("bin/sh", "usr/bin/sh")
        return cls(path, complete=any(os.path.lexists(path / shell) for shell in shells))

    @property
    def key(self) -> str:
        """An identity that changes with the directory."""
        return "host" if self.path is None else f"{self.path}@{self.path.stat().st_mtime_ns}"


def resolve(image: str | None, search: Sequence[str], cache: Path) -> RootSource:
    """Find `image`: the host, a directory, a tar archive, or a name in `search`.

    Blocks while an archive is unpacked for the first time.

    Raises:
        SandboxUnsupportedError: Nothing of that name is there.
        SandboxError: The archive is refused.
    """
    if image is None or image == "host":
        return RootSource(None, complete=True)
    path = _find(image, search)
    if path.is_file():
        path = unpack(path, cache)
    return RootSource.of(None if path == Path("/") else path)


def _find(image: str, search: Sequence[str]) -> Path:
    name = image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    if name not in {"", ".", ".."}:
        for directory in search:
            candidate = Path(directory, name, "rootfs")
            if candidate.is_dir():
                return candidate.resolve()
    direct = Path(image)
    # Only absolute: a registry's name like `org/tool` must not find a directory nearby.
    if direct.is_absolute() and (direct.is_dir() or direct.is_file()):
        return direct.resolve()
    looked = ", ".join(repr(item) for item in search) or "no directory"
    raise SandboxUnsupportedError(
        f"no image {image!r}: it is no absolute path, and {looked} has no {name + '/rootfs'!r}",
        hint="name a directory or tar archive, or use another sandbox provider for registries",
    )
