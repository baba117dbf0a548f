"""The difference between two states as a page shows it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

from benchflow_contracts import FileDiff, RolloutTree, UsageError
from benchflow_kernel import TableDiff
from benchflow_store import ComparedNode, StateComparison, StepComparison

from .display import depth_first
from .query import RolloutQuery

ROWS: Final = 200
"""The maximum number of rows of one table; further rows are counted."""
PATHS: Final = 500
_CELL: Final = 2_000
_CHOICES: Final = 500

Sign = Literal["-", "+", "~"]
WORDS: Final[Mapping[Sign, str]] = {"-": "removed", "+": "added", "~": "changed"}


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One row that differs. Of a changed row, a cell is `before → after`."""

    sign: Sign
    word: str
    cells: Sequence[str]


@dataclass(frozen=True, slots=True)
class DiffTable:
    """The differences in one table."""

    database: str
    name: str
    columns: Sequence[str]
    rows: Sequence[DiffRow]
    hidden: int
    rows_before: int
    rows_after: int
    is_opaque: bool
    """The table is too large to compare."""


@dataclass(frozen=True, slots=True)
class DiffSide:
    """One side of the comparison, with the links to its nodes."""

    node: ComparedNode
    url: str
    diverges_url: str | None


@dataclass(frozen=True, slots=True)
class DiffPage:
    """A comparison, or the reason why the states cannot be compared."""

    a: str
    b: str
    swap_url: str
    choices: Sequence[str]
    """The nodes of this rollout that have a recorded state."""
    problem: str = ""
    hint: str = ""
    nearest: Sequence[str] = ()
    """The first nodes with a state at or below `a` and `b`; empty if one side has none."""
    comparison: StepComparison | None = None
    """Where the paths part, known also without states; `None` if a node is unknown."""
    has_states: bool = False
    sides: Sequence[DiffSide] = ()
    tables: Sequence[DiffTable] = ()
    files: Sequence[DiffRow] = ()
    hidden_files: int = 0
    total_rows: int = 0
    total_files: int = 0

    @property
    def nearest_url(self) -> str:
        """The URL that compares the `nearest` nodes; empty without them."""
        return _compare_url(*self.nearest) if self.nearest else ""

    @classmethod
    def of(cls, a: str, b: str, tree: RolloutTree, found: StateComparison) -> "DiffPage":
        """Return the page of a comparison."""
        tables = [
            _table(database, name, diff)
            for database, diffs in found.databases.items()
            for name, diff in diffs.items()
        ]
        files = list(_files(found.files))
        return cls(
            a=a,
            b=b,
            swap_url=_swap(a, b),
            choices=choices_of(tree),
            comparison=found,
            has_states=True,
            sides=[_side(found.a), _side(found.b)],
            tables=tables,
            files=files[:PATHS],
            hidden_files=max(len(files) - PATHS, 0),
            total_rows=sum(len(table.rows) + table.hidden for table in tables),
            total_files=len(files),
        )

    @classmethod
    def without_states(
        cls, a: str, b: str, tree: RolloutTree, error: UsageError, steps: StepComparison | None
    ) -> "DiffPage":
        """Return the page of two nodes whose states cannot be compared."""
        return cls(
            a=a,
            b=b,
            swap_url=_swap(a, b),
            choices=choices_of(tree),
            problem=str(error),
            hint=error.hint or "",
            nearest=_nearest(tree, a, b),
            comparison=steps,
            sides=[] if steps is None else [_side(steps.a), _side(steps.b)],
        )


def choices_of(tree: RolloutTree) -> list[str]:
    """Return the nodes of a rollout that have a recorded state, at most 500."""
    return [node.id for node in tree.nodes if node.state_ref is not None][:_CHOICES]


def cell_text(value: Any) -> str:  # noqa: ANN401 - a cell of any database
    """Return a cell as text; only strings are without quotes."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _CELL else f"{text[:_CELL]}…"


def _nearest(tree: RolloutTree, a: str, b: str) -> tuple[str, ...]:
    tops = [tree.index.get(name) for name in (a, b)]
    found = [
        next((node.id for node in depth_first(top) if node.state_ref is not None), None)
        for top in tops
        if top is not None
    ]
    names = tuple(name for name in found if name is not None)
    return names if len(set(names)) == 2 else ()


def _swap(a: str, b: str) -> str:
    return _compare_url(b, a)


def _compare_url(a: str, b: str) -> str:
    return "?" + urlencode({"a": a, "b": b})


def _side(node: ComparedNode) -> DiffSide:
    def url(name: str) -> str:
        return f"/r/{quote(node.rollout_id, safe='')}{RolloutQuery(sel=name).url()}"

    return DiffSide(
        node, url(node.node), None if node.diverges_at is None else url(node.diverges_at)
    )


def _table(database: str, name: str, diff: TableDiff) -> DiffTable:
    rows = list(_rows(diff))
    width = max((len(row.cells) for row in rows), default=0)
    columns = diff.columns or [f"column {at}" for at in range(1, width + 1)]
    return DiffTable(
        database=database,
        name=name,
        columns=columns,
        rows=rows[:ROWS],
        hidden=max(len(rows) - ROWS, 0),
        rows_before=diff.rows_before,
        rows_after=diff.rows_after,
        is_opaque=diff.opaque,
    )


def _rows(diff: TableDiff) -> Iterator[DiffRow]:
    for row in diff.removed:
        yield DiffRow("-", WORDS["-"], [cell_text(value) for value in row])
    for row in diff.added:
        yield DiffRow("+", WORDS["+"], [cell_text(value) for value in row])
    for change in diff.changed:
        pairs = zip(change.before, change.after, strict=True)
        yield DiffRow("~", WORDS["~"], [_change(before, after) for before, after in pairs])


def _change(before: object, after: object) -> str:
    if before == after:
        return cell_text(after)
    return f"{cell_text(before)} → {cell_text(after)}"


def _files(files: FileDiff) -> Iterator[DiffRow]:
    for path in files.removed:
        yield DiffRow("-", WORDS["-"], [path])
    for path in files.added:
        yield DiffRow("+", WORDS["+"], [path])
    for path in files.changed:
        yield DiffRow("~", WORDS["~"], [path])
