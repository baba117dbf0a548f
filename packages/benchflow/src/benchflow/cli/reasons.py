"""Counts the reasons that tasks are not ok. Names and numbers do not make another reason."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from .check_state import Row

_VARIES: Final = (
    (re.compile(r"sha256:[0-9a-f]{64}"), "sha256:…"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
    (re.compile(r"(?<![\w.])/\S+"), "…"),
    (re.compile(r"\d+"), "N"),
)
_SERVICE: Final = re.compile(r"services\.[^.]+")
_LONGEST: Final = 160


def by_reason(rows: Iterable[Row]) -> list[dict[str, object]]:
    """Return each reason with its number of tasks, an example and the remedy; most tasks first."""
    counts: dict[str, int] = {}
    examples: dict[str, dict[str, object]] = {}
    for row in rows:
        for reason, hint in dict(_reasons(row)).items():
            counts[reason] = counts.get(reason, 0) + 1
            examples.setdefault(reason, {"example": row["id"], "hint": hint})
    ordered = sorted(counts, key=lambda reason: (-counts[reason], reason))
    return [{"reason": each, "count": counts[each], **examples[each]} for each in ordered]


def _reasons(row: Row) -> Iterator[tuple[str, str]]:
    for refusal in row["refusals"]:
        where = _SERVICE.sub("services.*", _key(refusal["where"] or ""))
        yield (
            _plain(f"{where}: {refusal['reason']}" if where else refusal["reason"]),
            refusal["hint"],
        )
    for run in row["runs"]:
        if not run["ok"]:
            yield _plain(f"{run['agent']}: {run['why']}"), ""


def _key(where: str) -> str:
    """Return the file's name and the key or line in it."""
    file, _, key = where.rpartition(":")
    name = (file or where).rpartition("/")[2]
    return f"{name}:{key}" if file else ""


def _plain(text: str) -> str:
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
