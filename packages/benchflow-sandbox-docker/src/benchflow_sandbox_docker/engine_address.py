"""Find the engine's socket, as Docker's own client does."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import UsageError

_DEFAULT = "unix:///var/run/docker.sock"
_UNIX = "unix://"
_HINT = "`docker context ls` lists the contexts; $DOCKER_HOST overrides them"


def socket_of_engine() -> str:
    """Return the Unix socket of the engine.

    `$DOCKER_HOST` names the socket. If it is not set, `$DOCKER_CONTEXT` or the `config.json` of
    Docker's client names a context.

    Raises:
        UsageError: The engine is not on this host, or the context cannot be read.
    """
    address, source = os.environ.get("DOCKER_HOST"), "$DOCKER_HOST"
    if not address:
        context = os.environ.get("DOCKER_CONTEXT") or _current()
        address, source = _host(context), f"the host of the Docker context {context!r}"
    if not address.startswith(_UNIX):
        raise UsageError(
            f"{source} is {address!r}: the engine must be on this host",
            hint="set $DOCKER_HOST to a Unix socket, such as unix:///var/run/docker.sock",
        )
    return address.removeprefix(_UNIX)


def _home() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _current() -> str:
    path = _home() / "config.json"
    return str(_read(path).get("currentContext") or "default") if path.exists() else "default"


def _host(context: str) -> str:
    if context == "default":
        return _DEFAULT
    name = hashlib.sha256(context.encode()).hexdigest()
    path = _home() / "contexts/meta" / name / "meta.json"
    try:
        return str(_read(path)["Endpoints"]["docker"]["Host"])
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"the Docker context {context!r} does not name an engine", where=str(path), hint=_HINT
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_bytes()))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the settings of Docker's client cannot be read: {error}", where=str(path), hint=_HINT
        ) from error
