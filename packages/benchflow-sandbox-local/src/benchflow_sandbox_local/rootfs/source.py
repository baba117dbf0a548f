"""Images of the store, and what a root file system is made from."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from benchflow_contracts._model import Model
from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.image_config import ImageConfig
from pydantic import ValidationError

_MAX_RECORD = 4 << 20


class ImageRecord(Model):
    """`images/records/KEY.json`."""

    key: str
    """The full key of its content."""
    lowers: tuple[Path, ...]
    """The directories of its layers in overlayfs's own format, top first."""
    complete: bool = True
    """As `RootSource` has it."""
    config: Mapping[str, Any] = {}
    """As the OCI image format has it."""

    @property
    def image_config(self) -> ImageConfig:
        """The image's configuration for processes."""
        return ImageConfig.of(self.config)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record; raise `SandboxError` when it is malformed."""
        try:
            with path.open("rb") as file:
                return cls.model_validate_json(file.read(_MAX_RECORD))
        except (OSError, ValidationError) as error:
            raise SandboxError(
                f"the record of an image {str(path)!r} cannot be read: {error}",
                hint="remove it; the next use builds it again",
            ) from error


def read_config(path: Path) -> ImageConfig:
    """Read the OCI `config` beside a root file system; empty when there is none.

    Raises:
        SandboxError: It is not one.
    """
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_RECORD))
    except FileNotFoundError:
        return ImageConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(f"{str(path)!r} is not the config of an image: {error}") from error
    if not isinstance(found, dict):
        raise SandboxError(f"{str(path)!r} is not a JSON object")
    return ImageConfig.of(cast("dict[str, Any]", found))


@dataclass(frozen=True, slots=True)
class RootSource:
    """An image that was found, or the host's own root."""

    path: Path | None
    """A directory or a record, for `of`. None is the host's own root."""
    complete: bool
    """Whether it has a shell of its own; otherwise it is a layer over the host's root."""
    lowers: tuple[Path, ...] = ()
    """The directories of its layers, top first."""
    config: ImageConfig = field(default_factory=ImageConfig)
    made: str = ""
    """The key of an image of the store."""

    @classmethod
    def of(cls, path: Path | None) -> "RootSource":
        """Return the source at `path`, `None` for the host's root.

        Raises:
            SandboxError: The configuration of the image cannot be read.
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
        """The digest of its bytes; None for the host's root and for a directory."""
        return f"sha256:{self.made}" if self.made else None

    @property
    def key(self) -> str:
        """A key that changes with the content."""
        if self.path is None:
            return "host"
        return f"made:{self.made}" if self.made else f"{self.path}@{self.path.stat().st_mtime_ns}"
