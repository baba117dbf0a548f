"""Images of the store, and the sources of root file systems."""

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
    """The full key of the image's content."""
    lowers: tuple[Path, ...]
    """The directories of the layers in the format of overlayfs, top first."""
    complete: bool = True
    """See `RootSource.complete`."""
    config: Mapping[str, Any] = {}
    """The `config` of the OCI image format."""

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
                hint="remove the record; the next use creates it again",
            ) from error


def read_config(path: Path) -> ImageConfig:
    """Read an OCI `config` file; return an empty one if the file does not exist.

    Raises:
        SandboxError: The file is not the config of an image.
    """
    try:
        with path.open("rb") as file:
            config = json.loads(file.read(_MAX_RECORD))
    except FileNotFoundError:
        return ImageConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(f"{str(path)!r} is not the config of an image: {error}") from error
    if not isinstance(config, dict):
        raise SandboxError(f"{str(path)!r} is not a JSON object")
    return ImageConfig.of(cast("dict[str, Any]", config))


@dataclass(frozen=True, slots=True)
class RootSource:
    """An image on this host, or the host's own root."""

    path: Path | None
    """The directory or the record that `of` reads. None is the host's own root."""
    complete: bool
    """Whether the image has a shell; otherwise its layers lie over the host's root."""
    lowers: tuple[Path, ...] = ()
    """The directories of the layers, top first."""
    config: ImageConfig = field(default_factory=ImageConfig)
    store_key: str = ""
    """The key of an image of the store; empty for another source."""

    @classmethod
    def of(cls, path: Path | None) -> "RootSource":
        """Return the source at `path`; None is the host's root.

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
        """The digest of the image's content; None for the host's root and for a directory."""
        return f"sha256:{self.store_key}" if self.store_key else None

    @property
    def key(self) -> str:
        """A key that changes with the content."""
        if self.path is None:
            return "host"
        if self.store_key:
            return f"store:{self.store_key}"
        return f"{self.path}@{self.path.stat().st_mtime_ns}"
