"""The services in `docker-compose.yaml` of a task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator

from .config import Record
from .config.artifact import ServiceName
from .toml_text import validate


class Service(Record):
    """One service as written, before variables are replaced."""

    document: Mapping[str, Any]

    @property
    def image(self) -> str | None:
        """The image that the service names."""
        image = self.document.get("image")
        return image if isinstance(image, str) else None


def _as_service(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping")  # noqa: TRY004 - pydantic reports ValueErrors
    return {"document": cast("Mapping[str, object]", value)}


class Compose(Record):
    """A compose file. `document` is its plain data, with variables as written."""

    services: Mapping[ServiceName, Annotated[Service, BeforeValidator(_as_service)]]
    document: Mapping[str, Any]


def read_compose(root: Path, file: Path) -> Compose:
    """Return the compose file of the task `root`.

    Raises:
        TaskError: The file is not YAML, has no services, or has an invalid service name.
    """
    # Import the parser only for a task that has YAML.
    from .yaml_text import ComposeLoader, read_yaml  # noqa: PLC0415

    document = read_yaml(root, file, ComposeLoader)
    return validate(Compose, {"services": document.get("services"), "document": document}, file)
