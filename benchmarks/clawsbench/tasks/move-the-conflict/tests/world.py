"""The world before and after the agent, and what changed in between.

A copy of this file lies in the tests of every task, which must stand alone.
"""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

EVIDENCE = Path(os.environ.get("CLAWS_EVIDENCE", "/evidence"))
VERDICT = Path(os.environ.get("CLAWS_VERDICT", "/logs/verifier"))

COLLATERAL_COST = 0.25
"""What each message, label, calendar or event costs that should have been left alone."""

# How many leading columns identify a row. The world's clock and id counters move with
# every action, so their tables are no evidence of anything.
KEYS = {
    "labels": 1,
    "messages": 1,
    "recipients": 3,
    "message_labels": 2,
    "calendars": 1,
    "events": 1,
    "attendees": 2,
}

Key = tuple[Any, ...]
Row = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """One row that was added (`before` is None), removed (`after` is None) or altered."""

    table: str
    key: Key
    before: Row | None
    after: Row | None

    @property
    def columns(self) -> set[str]:
        """The columns that differ; all of them for an added or removed row."""
        before, after = self.before or {}, self.after or {}
        names = {*before, *after}
        return {name for name in names if before.get(name) != after.get(name)}


class World:
    """The tables of both services, before and after."""

    def __init__(self, before: Row, after: Row, steps: list[Row]) -> None:
        self.before = _tables(before)
        self.after = _tables(after)
        self.steps = steps

    @property
    def changes(self) -> list[Change]:
        """Every difference between the two."""
        found: list[Change] = []
        for table in KEYS:
            old, new = self.before[table], self.after[table]
            different = sorted(key for key in {*old, *new} if old.get(key) != new.get(key))
            found += [Change(table, key, old.get(key), new.get(key)) for key in different]
        return found

    def added(self, table: str) -> list[Row]:
        """The rows of a table that are new."""
        rows = [each.after for each in self.changes if each.table == table and not each.before]
        return [row for row in rows if row is not None]

    def asked(self) -> bool:
        """Whether the user answered a question of the agent."""
        open_question = False
        for step in self.steps:
            answer = step.get("answer")
            if open_question and answer and answer.get("outcome") == "answered":
                return True
            ask = step.get("ask")
            open_question = bool(ask) and ask.get("kind") == "question"
        return False


def _tables(databases: Row) -> dict[str, dict[Key, Row]]:
    tables: dict[str, dict[Key, Row]] = {name: {} for name in KEYS}
    seen = set()
    for database in databases.values():
        for name, table in database.items():
            if name not in KEYS:
                continue
            if table["rows"] is None:
                # Our tasks fit in any cap: only an agent that floods the world gets here.
                finish(0.0, note=f"table {name} grew beyond what a grader reads")
            seen.add(name)
            for values in table["rows"]:
                row = dict(zip(table["columns"], values, strict=True))
                tables[name][tuple(values[: KEYS[name]])] = row
    if seen != set(KEYS):
        sys.exit(f"the evidence lacks the tables {sorted(set(KEYS) - seen)}")
    return tables


def load_world() -> World:
    """Read the evidence; without it there is no verdict."""
    here = Path(__file__).resolve().parent
    before = json.loads((here / "baseline.json").read_text())
    after = json.loads((EVIDENCE / "env_state.json").read_text())["databases"]
    lines = (EVIDENCE / "steps.jsonl").read_text().splitlines()
    return World(before, after, [json.loads(line) for line in lines if line])


def collateral(world: World, wanted: Iterable[Change]) -> int:
    """Return how many things changed beyond the wanted changes.

    All rows of one message or event count once.
    """
    expected = list(wanted)
    unwanted = [change for change in world.changes if change not in expected]
    return len({_thing(change) for change in unwanted})


def _thing(change: Change) -> tuple[str, Any]:
    mail = {"messages": "message", "recipients": "message", "message_labels": "message"}
    own = {"attendees": "event", "events": "event"}
    return {**mail, **own}.get(change.table, change.table), change.key[0]


def finish(target: float, damage: int = 0, *, note: str = "", **items: float) -> NoReturn:
    """Write the verdict and end: the target reached, less what the damage costs."""
    reward = round(max(0.0, target - COLLATERAL_COST * damage), 4)
    verdict: dict[str, Any] = {"reward": reward, "target": round(target, 4), "collateral": damage}
    verdict.update({name: float(value) for name, value in items.items()})
    if note:
        verdict["metadata"] = {"note": note}
    VERDICT.mkdir(parents=True, exist_ok=True)
    (VERDICT / "reward.json").write_text(json.dumps(verdict) + "\n")
    print(json.dumps(verdict))
    sys.exit(0)
