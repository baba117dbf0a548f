"""The query of a list of runs: filters, order and place. All of it is in the URL."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal
from urllib.parse import urlencode

from benchflow_contracts import UsageError

PAGE: Final = 50
_SORTS: Final = {
    "when": "finished",
    "reward": "reward_key",
    "task": "task",
    "steps": "steps",
    "cost": "COALESCE(cost, -1)",
    "seconds": "COALESCE(seconds, -1)",
}
"""The order of a list, by the name in the URL. A minus before the name turns the order."""
FILTERS: Final = ("job", "status", "boundary", "task", "agent", "model", "label", "fp", "q")
LONGEST: Final = 500
"""The most characters of one parameter."""

Attempts = Literal["current", "all"]


@dataclass(frozen=True, slots=True)
class RunQuery:
    """What a list of runs shows. An empty filter does not filter."""

    job: str = ""
    status: str = ""
    boundary: str = ""
    task: str = ""
    agent: str = ""
    model: str = ""
    label: str = ""
    """A label of a user on the rollout or on one of its nodes."""
    fp: str = ""
    """The fingerprint of an error."""
    q: str = ""
    """A part of the rollout's id or of the task's id."""
    attempts: str = "current"
    """`current`: one attempt for each slot; `all`: also those that a later attempt replaced."""
    sort: str = "-when"
    after: str = ""
    """The place after which the page begins: a key of a row."""
    before: str = ""
    """The place before which the page ends."""

    @classmethod
    def of(cls, params: Mapping[str, str]) -> "RunQuery":
        """Return the query of a URL. Unknown parameters are ignored.

        Raises:
            UsageError: The order or the place is not one of this list.
        """
        names = {each.name for each in fields(cls)}
        given = {name: value for name, value in params.items() if name in names and value}
        too_long = [name for name, value in given.items() if len(value) > LONGEST]
        query = cls(**given)
        if too_long or query.sort.removeprefix("-") not in _SORTS:
            wrong = too_long[0] if too_long else f"sort={query.sort}"
            raise UsageError(f"not a query of runs: {wrong}", hint=f"sort by {', '.join(_SORTS)}")
        for place in (query.after, query.before):
            if place:
                read_place(place)
        return query

    @property
    def column(self) -> str:
        """The SQL expression that orders the list."""
        return _SORTS[self.sort.removeprefix("-")]

    @property
    def is_descending(self) -> bool:
        """Whether the greatest value comes first."""
        return self.sort.startswith("-")

    @property
    def filters(self) -> dict[str, str]:
        """The filters that are set, by name."""
        found = {name: str(getattr(self, name)) for name in FILTERS}
        return {name: value for name, value in found.items() if value}

    def with_(self, **changes: str) -> "RunQuery":
        """Return the query with other values, from its first page."""
        return replace(self, **{"after": "", "before": "", **changes})

    def url_query(self) -> str:
        """Return the query string, without the defaults and without a question mark."""
        pairs = [(each.name, getattr(self, each.name), each.default) for each in fields(self)]
        return urlencode([(name, value) for name, value, default in pairs if value != default])

    def where(self) -> tuple[str, list[object]]:
        """Return the condition of the filters in SQL, and its values."""
        parts, values = ["1 = 1"], list[object]()
        if self.attempts != "all":
            parts.append("is_current = 1")
        for name, value in self.filters.items():
            if name == "q":
                parts.append("(instr(lower(name), ?) OR instr(lower(task), ?))")
                values += [value.lower()] * 2
            elif name == "label":
                parts.append("name IN (SELECT rollout FROM labels WHERE label = ?)")
                values.append(value)
            elif name == "status" and value == "unscored":
                parts.append("paid IS NULL AND status IN ('failed', 'ungraded', 'completed')")
            else:
                parts.append(f"{'fingerprint' if name == 'fp' else name} = ?")
                values.append("" if value == "-" else value)
        return " AND ".join(parts), values


def write_place(key: object, run: int) -> str:
    """Return the key of a row as a part of a URL."""
    return base64.urlsafe_b64encode(json.dumps([key, run]).encode()).decode().rstrip("=")


def read_place(place: str) -> tuple[Any, int]:
    """Return the value of the order, and the number of the row.

    Raises:
        UsageError: The text is not a key of a row.
    """
    try:
        padded = place + "=" * (-len(place) % 4)
        key, run = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if isinstance(key, str | int | float) and isinstance(run, int) and abs(run) < 1 << 62:
            return (key, run) if not isinstance(key, int) else (float(key), run)
    except (ValueError, TypeError, binascii.Error, RecursionError, OverflowError):
        pass
    raise UsageError("not a place of this list", hint="open the list from its first page")
