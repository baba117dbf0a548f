"""Artifacts that are copied out of a container, and the commands that prepare them."""

import re
from pathlib import PurePosixPath
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from .record import Record, Seconds

MAIN: Final = "main"
"""The compose service in which the agent runs."""

_SERVICE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")


def service_name(value: str) -> str:
    """Return the name of a compose service.

    Raises:
        ValueError: The name has other characters than letters, digits, `-`, `_` and `.`.
    """
    name = value.strip()
    if not _SERVICE.fullmatch(name):
        raise ValueError(f"{value[:80]!r} is not a name of a compose service")
    return name


ServiceName = Annotated[str, AfterValidator(service_name)]


class Artifact(Record):
    """A file or directory that outlives its container."""

    source: str
    """A path in the container. A relative path is below the working directory."""
    destination: str | None = None
    """A path below the rollout's artifacts. `None` repeats `source`."""
    exclude: tuple[str, ...] = ()
    """Patterns of `tar --exclude`."""
    service: ServiceName | None = None

    @field_validator("source")
    @classmethod
    def _check_no_parent(cls, value: str) -> str:
        if ".." in PurePosixPath(value).parts:
            raise ValueError("must not contain '..'")
        return value

    @field_validator("destination")
    @classmethod
    def _check_relative(cls, value: str | None) -> str | None:
        if not value:
            return None
        path = PurePosixPath(value)
        if "\\" in value or path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError("must be a relative path with forward slashes and without '..'")
        if value.rstrip("/") == "manifest.json":
            raise ValueError("'manifest.json' is the list of collected artifacts")
        return value

    @model_validator(mode="after")
    def _check_service_source(self) -> "Artifact":
        absolute = self.source.startswith("/") or _DRIVE.match(self.source)
        if self.service not in {None, MAIN} and not absolute:
            raise ValueError(f"source must be absolute in service {self.service!r}")
        return self


def _from_string(value: object) -> object:
    return {"source": value} if isinstance(value, str) else value


Artifacts = tuple[Annotated[Artifact, BeforeValidator(_from_string)], ...]
"""Entries of `artifacts`. A plain string is a source."""


class CollectHook(Record):
    """`[[verifier.collect]]`: a command that runs after the agent and before the collection."""

    command: str
    service: ServiceName = MAIN
    timeout_sec: Seconds = Field(default=60)
    user: str | int | None = None
