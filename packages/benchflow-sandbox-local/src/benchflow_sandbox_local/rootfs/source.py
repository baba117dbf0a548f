"""What a root file system is made from."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_sandbox_core.image_config import ImageConfig

from .record import ImageRecord, read_config


@dataclass(frozen=True, slots=True)
class RootSource:
    """An image that was found, or the host's own root."""

    path: Path | None
    """Where `of` finds it again: a directory or a record. `None` is the host's own root."""
    complete: bool
    """Whether it has a shell of its own; otherwise it is a layer over the host's root."""
    lowers: tuple[Path, ...] = ()
    """The directories of its layers, top first."""
    config: ImageConfig = field(default_factory=ImageConfig)
    made: str = ""
    """What an image of the store was made from."""

    @classmethod
    def of(cls, path: Path | None) -> "RootSource":
        """Return the source at `path`, `None` for the host's root.

        Raises:
            SandboxError: What the image says of itself cannot be read.
        """
        if path is None:
            return cls(None, complete=True)
        if path.is_file():
            record = ImageRecord.read(path)
            config = record.image_config
            return cls(path, record.complete, record.lowers, config, record.key)
        shells = ("bin/sh", "usr/bin/sh")
        complete = any(os.path.lexists(path / shell) for shell in shells)
        beside = path.parent / "config.json"
        config = read_config(beside) if path.name == "rootfs" else ImageConfig()
        return cls(path, complete, (path,), config)

    @property
    def digest(self) -> str | None:
        """The name of its bytes; `None` for the host's root, and for a directory."""
        return f"sha256:{self.made}" if self.made else None

    @property
    def key(self) -> str:
        """An identity that changes with what is there."""
        if self.path is None:
            return "host"
        return f"made:{self.made}" if self.made else f"{self.path}@{self.path.stat().st_mtime_ns}"
