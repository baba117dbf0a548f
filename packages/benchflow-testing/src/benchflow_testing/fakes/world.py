"""A tiny stateful world: tables in one JSON file inside a sandbox."""

import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchflow_contracts.sandbox import Sandbox
from pydantic import TypeAdapter

Row = tuple[Any, ...]
Tables = dict[str, list[Row]]

_TABLES: TypeAdapter[Tables] = TypeAdapter(Tables)
_STATE = "state.json"


class FakeWorld:
    """Reads and writes the tables of a `FakeEnvironment`, over any Sandbox.

    The state is a directory below `/var/lib/fake-world`, so that a fork of the
    sandbox carries it. A fake agent acts on the world through this class.
    """

    def __init__(self, sandbox: Sandbox, name: str = "fake") -> None:
        self._sandbox = sandbox
        self.home = f"/var/lib/fake-world/{name}"

    async def read(self, where: str = "live") -> Tables:
        """Return every table of the live state, or of the copy called `where`."""
        with TemporaryDirectory() as directory:
            local = Path(directory) / _STATE
            await self._sandbox.download(posixpath.join(self.home, where, _STATE), local)
            return _TABLES.validate_json(local.read_bytes())

    async def write(self, tables: Mapping[str, Sequence[Row]], where: str = "live") -> None:
        """Replace every table of the live state, or of the copy called `where`."""
        with TemporaryDirectory() as directory:
            local = Path(directory) / _STATE
            local.write_text(json.dumps(tables, sort_keys=True), encoding="utf-8")
            await self._sandbox.upload(local, posixpath.join(self.home, where, _STATE))

    async def insert(self, table: str, row: Row) -> None:
        """Append one row to a table. Create the table if it is missing."""
        tables = await self.read()
        tables.setdefault(table, []).append(row)
        await self.write(tables)
