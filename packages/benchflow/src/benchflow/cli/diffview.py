"""The difference of two states, on the terminal."""

from collections.abc import Iterator

from benchflow_kernel import EnvDiff, TableDiff

from .output import note, stdout, visible

_ROWS = 20
"""The most rows of one kind for each table; other rows are counted."""


def print_diff(diff: EnvDiff) -> None:
    """Print removed, added and changed rows by table, then files by path."""
    if diff.empty:
        note("the two states are equal")
        return
    console = stdout()
    for database, tables in diff.databases.items():
        console.print(f"[bold]{visible(database)}[/bold]")
        for name, table in tables.items():
            counts = f"{table.rows_before} -> {table.rows_after} rows"
            console.print(f"  [cyan]{visible(name)}[/cyan]  {counts}")
            for line in _lines(table):
                console.print(f"    {visible(line)}")
    for sign, paths in (
        ("-", diff.files.removed),
        ("+", diff.files.added),
        ("~", diff.files.changed),
    ):
        for path in paths:
            console.print(f"{sign} {visible(path)}")


def _lines(table: TableDiff) -> Iterator[str]:
    if table.opaque:
        yield "the table is too big: only the counts are known"
    yield from _capped([f"- {_row(table, row)}" for row in table.removed])
    yield from _capped([f"+ {_row(table, row)}" for row in table.added])
    yield from _capped([f"~ {_change(table, each.before, each.after)}" for each in table.changed])


def _capped(lines: list[str]) -> list[str]:
    left = len(lines) - _ROWS
    return [*lines[:_ROWS], *([f"  … and {left} more"] if left > 0 else [])]


def _row(table: TableDiff, row: tuple[object, ...]) -> str:
    names = table.columns or [f"column {at}" for at in range(1, len(row) + 1)]
    return ", ".join(f"{name}={value!r}" for name, value in zip(names, row, strict=False))


def _change(table: TableDiff, before: tuple[object, ...], after: tuple[object, ...]) -> str:
    cells: list[str] = []
    for name, old, new in zip(table.columns, before, after, strict=True):
        cells.append(f"{name}={old!r}" if old == new else f"{name}: {old!r} -> {new!r}")
    return ", ".join(cells)
