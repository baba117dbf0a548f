"""Secrets do not enter a bundle: the pages are made from redacted copies of the record."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

import apsw
from benchflow_contracts import BenchFlowError, StoreError
from benchflow_contracts.redaction import MASK
from benchflow_engine.config import RunConfig
from benchflow_engine.secret_redactor import LEAST_SECRET, SecretRedactor
from benchflow_engine.secrets import secrets_of
from benchflow_store import StoredRollout
from pydantic import ValidationError

from benchflow_dashboard.monitor.credentials import mask_credential_bytes

_SECRET_NAMES: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


class BundleRedactor:
    """Masks exact values in their encodings, and credentials by their shape."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._values = SecretRedactor(secrets)
        self.changes = 0
        """How many pieces were changed."""

    def data(self, data: bytes) -> bytes:
        """Return `data` without secrets."""
        return self._counted(data, self._masked(self._values.data(data)))

    def json(self, data: bytes) -> bytes:
        """Return one JSON value without secrets: still JSON, if it was."""
        return self._counted(data, self._masked(self._values.json(data)))

    def lines(self, data: bytes) -> bytes:
        """Return lines of JSON without secrets."""
        if self._masked(self._values.data(data)) == data:
            return data
        return b"\n".join(self.json(line) for line in data.split(b"\n"))

    @staticmethod
    def _masked(data: bytes) -> bytes:
        return mask_credential_bytes(data)

    def _counted(self, before: bytes, after: bytes) -> bytes:
        self.changes += before != after
        return after


def find_secrets(rollouts: Iterable[Path], names: Iterable[str]) -> frozenset[str]:
    """Return the secret values that this process knows.

    They are the values of the variables that the rollouts used, of `names`, and of each variable of
    this process whose name is that of a secret.
    """
    found = {value for name, value in os.environ.items() if _SECRET_NAMES.search(name)}
    found.update(os.environ.get(name, "") for name in names)
    for directory in rollouts:
        found.update(_secrets_of(directory))
    return frozenset(value for value in found if len(value) >= LEAST_SECRET)


def _secrets_of(rollout: Path) -> Iterator[str]:
    try:
        config = RunConfig.model_validate(StoredRollout(rollout).config.run)
    except (BenchFlowError, ValidationError):
        return
    given = {
        name: os.environ.get(name, "") if MASK in value else value
        for name, value in config.agent.env.items()
    }
    agent = config.agent.model_copy(update={"env": given})
    yield from secrets_of(config.model_copy(update={"agent": agent}))


def redact_database(path: Path, redactor: BundleRedactor) -> None:
    """Mask the secrets in each text of a private copy of a job's record.

    Raises:
        StoreError: The copy cannot be read or changed.
    """
    try:
        db = apsw.Connection(str(path))
        try:
            _rows(db, "PRAGMA journal_mode = DELETE")
            with db:
                for (table,) in _rows(db, "SELECT name FROM sqlite_master WHERE type = 'table'"):
                    _redact_table(db, _quote(table), redactor)
        finally:
            db.close()
    except apsw.Error as error:
        raise StoreError(f"cannot redact the record {path.parent.name!r}: {error}") from error


def _redact_table(db: apsw.Connection, table: str, redactor: BundleRedactor) -> None:
    info = _rows(db, f"PRAGMA table_info({table})")
    keys = [_quote(row[1]) for row in info if row[5]] or ["rowid"]
    where = " AND ".join(f"{key} = ?" for key in keys)
    for column in (_quote(row[1]) for row in info):
        # Names of the schema, quoted; values are bound.
        select = f"SELECT {column}, {', '.join(keys)} FROM {table}"  # noqa: S608
        update = f"UPDATE {table} SET {column} = ? WHERE {where}"  # noqa: S608
        for value, *key in _rows(db, select):
            if not isinstance(value, str | bytes):
                continue
            raw = value.encode() if isinstance(value, str) else value
            new = redactor.json(raw)
            if new != raw:
                _rows(db, update, (new.decode() if isinstance(value, str) else new, *key))


def _rows(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    return list(cast("Any", db).execute(sql, values))


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
