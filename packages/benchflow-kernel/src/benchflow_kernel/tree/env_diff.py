"""The differences between two states of a world."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchflow_contracts import EnvState, FileDiff, RareModel, TableState
from pydantic import Field

Row = tuple[Any, ...]
Rows = tuple[Row, ...]


class RowChange(RareModel):
    """One row, by its primary key, before and after."""

    before: Row
    after: Row


class TableDiff(RareModel):
    """The rows of one table that differ.

    A table without a key has no `changed` rows: one is removed and another one added.
    """

    columns: tuple[str, ...] = ()
    added: tuple[Row, ...] = ()
    removed: tuple[Row, ...] = ()
    changed: tuple[RowChange, ...] = ()
    opaque: bool = False
    """The table differs, but is too large on at least one side: only counts are known."""
    rows_before: int = Field(default=0, ge=0)
    rows_after: int = Field(default=0, ge=0)


class EnvDiff(RareModel):
    """The differences from one EnvState to another, by database and table."""

    databases: Mapping[str, Mapping[str, TableDiff]] = {}
    files: FileDiff = FileDiff()

    @property
    def empty(self) -> bool:
        """Whether the two states are equal."""
        return not self.databases and self.files == FileDiff()


def diff_states(a: EnvState, b: EnvState) -> EnvDiff:
    """Return the changes from `a` to `b`. The result is empty exactly when they are equal.

    Swapping the arguments swaps before and after, and nothing else. Rows are compared
    by primary key if both sides have a unique key, else as whole rows. If only one side
    has a database or table, the result has all of its rows. If the columns of a table
    differ, the result has every row of both sides, and no `columns`.
    """
    databases: dict[str, Mapping[str, TableDiff]] = {}
    for name in sorted({*a.databases, *b.databases}):
        before, after = a.databases.get(name), b.databases.get(name)
        if before != after:
            databases[name] = _tables(before or {}, after or {})
    return EnvDiff(databases=databases, files=_files(a.files, b.files))


def _files(a: Mapping[str, str], b: Mapping[str, str]) -> FileDiff:
    return FileDiff(
        added=tuple(sorted(b.keys() - a.keys())),
        removed=tuple(sorted(a.keys() - b.keys())),
        changed=tuple(sorted(path for path in a.keys() & b.keys() if a[path] != b[path])),
    )


def _tables(a: Mapping[str, TableState], b: Mapping[str, TableState]) -> dict[str, TableDiff]:
    names = sorted({*a, *b})
    return {name: _table(a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name)}


def _table(a: TableState | None, b: TableState | None) -> TableDiff:
    either = a or b
    assert either is not None, "one side has the table"
    old: Rows | None = () if a is None else a.rows
    new: Rows | None = () if b is None else b.rows
    same = a is None or b is None or a.columns == b.columns
    diff = TableDiff(
        columns=either.columns if same else (),
        opaque=old is None or new is None,
        rows_before=0 if a is None else a.row_count,
        rows_after=0 if b is None else b.row_count,
    )
    if old is None or new is None:
        return diff
    if a is None or b is None or not same or a.key != b.key:
        return diff.model_copy(update=_whole_rows(old, new))
    return diff.model_copy(update=_by_key(a, old, new) or _whole_rows(old, new))


def _whole_rows(old: Rows, new: Rows) -> dict[str, Any]:
    common = Counter(map(repr, old)) & Counter(map(repr, new))
    return {"removed": _without(old, common), "added": _without(new, common)}


def _without(rows: Rows, common: Counter[str]) -> Rows:
    remaining = Counter(common)
    rest: list[Row] = []
    for row in rows:
        token = repr(row)
        if remaining[token]:
            remaining[token] -= 1
        else:
            rest.append(row)
    return tuple(rest)


def _by_key(table: TableState, old: Rows, new: Rows) -> dict[str, Any] | None:
    """Compare by primary key, or return `None` if the key is not unique."""
    if not table.key or not set(table.key) <= set(table.columns):
        return None
    at = [table.columns.index(column) for column in table.key]
    before = {repr([row[index] for index in at]): row for row in old}
    after = {repr([row[index] for index in at]): row for row in new}
    if len(before) != len(old) or len(after) != len(new):
        return None
    return {
        "added": tuple(row for key, row in after.items() if key not in before),
        "removed": tuple(row for key, row in before.items() if key not in after),
        "changed": tuple(
            RowChange(before=row, after=after[key])
            for key, row in before.items()
            if key in after and repr(row) != repr(after[key])
        ),
    }
