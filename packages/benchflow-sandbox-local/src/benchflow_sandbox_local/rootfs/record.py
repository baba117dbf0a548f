"""An image that this store has made or taken in: its layers, and what it says of itself."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

from benchflow_contracts._model import Model
from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.image_config import ImageConfig
from pydantic import ValidationError

_MAX_BYTES = 4 << 20


class ImageRecord(Model):
    """`images/records/KEY.json`."""

    key: str
    """What it was made from, in full."""
    lowers: tuple[Path, ...]
    """The directories of its layers in overlayfs's own format, top first."""
    complete: bool = True
    """As `RootSource` has it."""
    config: Mapping[str, Any] = {}
    """As the OCI image format has it."""

    @property
    def image_config(self) -> ImageConfig:
        """What its processes get."""
        return ImageConfig.of(self.config)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record; raise `SandboxError` when it is none."""
        try:
            with path.open("rb") as file:
                return cls.model_validate_json(file.read(_MAX_BYTES))
        except (OSError, ValidationError) as error:
            raise SandboxError(
                f"the record of an image {str(path)!r} cannot be read: {error}",
                hint="remove it, and it is made again",
            ) from error


def read_config(path: Path) -> ImageConfig:
    """Read the OCI `config` beside a root file system; empty when there is none.

    Raises:
        SandboxError: It is not one.
    """
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except FileNotFoundError:
        return ImageConfig()
    except (OSError, ValueError, RecursionError) as error:
        raise SandboxError(f"{str(path)!r} is no image's config: {error}") from error
    if not isinstance(found, dict):
        raise SandboxError(f"{str(path)!r} is no JSON object")
    return ImageConfig.of(cast("dict[str, Any]", found))
