"""Ingest keys: a key can send traces, and nothing else."""

import hmac
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow_contracts import UsageError
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, NotAuthorizedException
from litestar.handlers import BaseRouteHandler

from benchflow_dashboard.security.access import access_of
from benchflow_dashboard.security.token_file import add_token, digest_of, read_token_file

if TYPE_CHECKING:
    from .service import MonitorService


@dataclass(frozen=True, slots=True)
class IngestKey:
    """A key by its digest; the key itself is shown once, when it is made."""

    name: str
    digest: str
    spans_per_sec: float | None = None
    """The quota; None is without a limit."""


def read_keys(path: Path) -> tuple[IngestKey, ...]:
    """Read keys from a TOML file: a table `[NAME]` with `digest` and `spans_per_sec`.

    Raises:
        UsageError: The file is not of this form.
    """
    keys: list[IngestKey] = []
    for name, table in read_token_file(path).items():
        rate = table.get("spans_per_sec")
        if rate is not None and not (isinstance(rate, int | float) and rate > 0):
            raise UsageError("it is a number above 0", where=f"{path}:{name}.spans_per_sec")
        keys.append(IngestKey(name, table["digest"], rate))
    return tuple(keys)


def add_key(path: Path, name: str, spans_per_sec: float | None = None) -> str:
    """Make a key, add its digest to a file that only this user may read, and return the key.

    Raises:
        UsageError: The name is taken or not a plain name, or the file is not one of keys.
    """
    fields = {} if spans_per_sec is None else {"spans_per_sec": float(spans_per_sec)}
    return add_token(path, name, "bfi", fields)


def ingest_key(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Require a known ingest key, if the server has keys. A guard of the ingest routes."""
    del handler
    monitor: MonitorService | None = connection.app.state.get("monitor")
    if monitor is None:
        raise HTTPException(status_code=404, detail="monitor mode is off")
    if not monitor.keys and not access_of(connection).has_auth:
        return
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    key = value if scheme.lower() == "bearer" else connection.headers.get("x-benchflow-key", "")
    digest = digest_of(key)
    for known in monitor.keys.values():
        if hmac.compare_digest(known.digest, digest):
            connection.state["ingest_key"] = known.name
            return
    raise NotAuthorizedException("the ingest key is missing or unknown")
