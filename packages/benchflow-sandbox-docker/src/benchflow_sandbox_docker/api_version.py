"""Which version of its API an engine is spoken to in."""

from collections.abc import Mapping
from typing import Any

from benchflow_contracts.errors import SandboxUnsupportedError

OLDEST = "1.41"
"""What Docker 20.10 speaks. A later engine is asked for no more than the oldest that it has."""


def dialect(told: Mapping[str, Any]) -> str:
    """Return the version to speak, by what an engine tells of itself.

    Raises:
        SandboxUnsupportedError: It is no Docker engine, or too old a one.
    """
    try:
        newest = str(told["ApiVersion"])
        oldest = str(told.get("MinAPIVersion") or OLDEST)
        # Podman tells of itself so, and of a Docker that it is like.
        names = [str(part["Name"]) for part in told.get("Components") or ()]
        too_old = _ordered(newest) < _ordered(OLDEST)
        spoken = max(OLDEST, oldest, key=_ordered)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SandboxUnsupportedError(f"what answers is no Docker engine: {error!r}") from error
    if any("podman" in name.lower() for name in names):
        raise SandboxUnsupportedError(
            "Podman answers where a Docker engine should",
            hint="let $DOCKER_HOST name the socket of dockerd",
        )
    if too_old:
        raise SandboxUnsupportedError(
            f"the engine speaks no newer API than {newest}",
            hint="Docker 20.10 or later is needed",
        )
    return spoken


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
