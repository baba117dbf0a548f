"""Build tables from rows of a sandbox. The rows are untrusted."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from benchflow_contracts import EnvironmentError_, TableState

from .in_sandbox.tables import row_line

ROW_CAP = 10_000
"""The limit of rows in one table. A larger table has only its size and digest."""

ROWS_BYTES_CAP = 16 * 1024 * 1024
"""The limit of bytes in one table's rows. A larger table has only its size and digest."""

_TABLE_CAP = 1000

Value = str | int | float | None


def table_state(
    columns: Sequence[str], key: Sequence[str], rows: Iterable[tuple[Value | bytes, ...]]
) -> TableState:
    """Count and digest all rows; include the rows of a small table."""
    digest = hashlib.sha256(row_line(tuple(columns)).encode())
    values: list[tuple[Value, ...]] | None = []
    count = size = 0
    for row in rows:
        line = row_line(row).encode()
        digest.update(b"\n" + line)
        count += 1
        size += len(line)
        if count > ROW_CAP or size > ROWS_BYTES_CAP:
            values = None
        if values is not None:
            values.append(tuple(map(_value, row)))
    return TableState(
        columns=tuple(columns),
        key=tuple(key),
        rows=None if values is None else tuple(values),
        row_count=count,
        digest=f"sha256:{digest.hexdigest()}",
    )


def _value(value: Value | bytes) -> Value:
    if isinstance(value, bytes):
        return f"sha256:{hashlib.sha256(value).hexdigest()}"
    return value


def read_rows(path: Path, name: str) -> Mapping[str, TableState]:
    """Read the tables of a file of JSON lines; `name` is for errors.

    An object `{"table", "columns", "key"}` begins a table; each array after it is one
    of its rows.

    Raises:
        EnvironmentError_: The file has another form, or exceeds a limit.
    """
    heads: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    tables: dict[str, TableState] = {}
    rows: list[tuple[Value, ...]] = []
    with path.open(encoding="utf-8", errors="backslashreplace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                _read_item(json.loads(line), heads, tables, rows)
            except (ValueError, TypeError, KeyError, RecursionError) as exc:
                raise EnvironmentError_(
                    f"the state of {name!r}, line {number}, is neither a table nor a row: {exc}"
                ) from None
    _finish(heads, tables, rows)
    return tables


Heads = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


def _read_item(
    item: object, heads: Heads, tables: dict[str, TableState], rows: list[tuple[Value, ...]]
) -> None:
    if isinstance(item, dict):
        _finish(heads, tables, rows)
        head = cast("dict[str, Any]", item)
        table = _text(head["table"])
        if table in heads or len(heads) >= _TABLE_CAP:
            raise ValueError(f"table {table[:80]!r} occurs twice, or exceeds the number of tables")
        columns = tuple(map(_text, head["columns"]))
        heads[table] = columns, tuple(map(_text, head.get("key", ())))
    elif isinstance(item, list) and heads:
        row = tuple(cast("list[object]", item))
        if len(row) != len(heads[next(reversed(heads))][0]):
            raise ValueError("a row has another number of columns than its table")
        if any(not isinstance(value, (str, int, float, type(None))) for value in row):
            raise TypeError("a value is neither text, a number, true, false nor null")
        rows.append(cast("tuple[Value, ...]", row))
    else:
        raise TypeError("rows come after their table's header")


def _finish(heads: Heads, tables: dict[str, TableState], rows: list[tuple[Value, ...]]) -> None:
    if heads:
        table = next(reversed(heads))
        tables[table] = table_state(*heads[table], rows)
        rows.clear()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not text")
    return value
