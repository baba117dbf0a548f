"""Ingest keys: a key can send traces, and nothing else."""

import hmac
import time
from collections.abc import Callable, Mapping
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


class Quotas:
    """Limits the spans of each key: a bucket that refills, and holds ten seconds of its rate."""

    def __init__(
        self, keys: Mapping[str, IngestKey], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str, spans: int) -> float:
        """Take spans from the quota of a key. Return 0, or the seconds until there is room."""
        key = self._keys.get(name)
        rate = None if key is None else key.spans_per_sec
        if rate is None:
            return 0.0
        now = self._clock()
        left, then = self._left.get(name, (rate * 10, now))
        left = min(rate * 10, left + (now - then) * rate)
        if left <= 0:
            self._left[name] = (left, now)
            return (1 - left) / rate
        self._left[name] = (left - spans, now)
        return 0.0


def ingest_key(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Require a known ingest key, if the server has keys. A guard of the ingest routes."""
    del handler
    monitor: MonitorService | None = connection.app.state.get("monitor")
    if monitor is None:
        raise HTTPException(status_code=404, detail="monitor mode is off")
    if not monitor.keys and not access_of(connection).users:
        return
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    key = value if scheme.lower() == "bearer" else connection.headers.get("x-benchflow-key", "")
    digest = digest_of(key)
    for known in monitor.keys.values():
        if hmac.compare_digest(known.digest, digest):
            connection.state["ingest_key"] = known.name
            return
    raise NotAuthorizedException("the ingest key is missing or unknown")
