"""The database of monitor mode: spans as they came, and rollouts as they were folded."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import RewardEvent, VerifyResult
from benchflow_store.database.connection import Row, SqlConnection, connect
from benchflow_traces import LogRecord, ObservedRollout, Span

from .codec import SpanRow, parse_rows
from .facts import RolloutFacts

MAX_TRACES: Final = 1_000
"""Traces of one conversation."""
_KEEP_SPAN: Final = """
INSERT INTO monitor_spans (trace, id, conversation, start_ns, end_ns, is_root, received, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (trace, id) DO UPDATE SET conversation = excluded.conversation,
    start_ns = excluded.start_ns, end_ns = excluded.end_ns, is_root = excluded.is_root,
    body = excluded.body
WHERE excluded.end_ns > monitor_spans.end_ns
    OR (excluded.end_ns = monitor_spans.end_ns AND excluded.body > monitor_spans.body)
"""
# A span that comes twice with other content leaves the same row in either order.
_OPEN: Final = """
INSERT INTO monitor_open (trace, changed, folded, has_root)
VALUES (?, ?, 0, (SELECT MAX(is_root) FROM monitor_spans WHERE trace = ?))
ON CONFLICT (trace) DO UPDATE SET changed = excluded.changed, has_root = excluded.has_root
"""
_KEEP_ROLLOUT: Final = """
INSERT INTO monitor_rollouts (id, service, version, environment, status, closed, started, ended,
    updated, spans, unknown_spans, models, dialects, error, steps, tool_calls, tool_errors, loops,
    asks, input_tokens, output_tokens, cost)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_KEEP_REWARD: Final = """
INSERT INTO monitor_rewards (rollout, source, space, granularity, step, value, error)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (rollout, source, granularity, step)
DO UPDATE SET space = excluded.space, value = excluded.value, error = excluded.error
"""


@dataclass(frozen=True, slots=True)
class OpenTrace:
    """A trace with spans that no stored rollout has yet."""

    trace: str
    changed: float
    """When its last span came, in seconds since the epoch."""
    folded: float
    """When it was folded last; 0 if never."""
    has_root: bool


@dataclass(frozen=True, slots=True)
class Score:
    """One reward, or the reason why it is missing."""

    source: str
    verdict: VerifyResult


class MonitorDatabase:
    """One connection. Use it from one thread at a time.

    Args:
        location: A file of SQLite, or the URL of a Postgres database.
        mode: `create` makes the tables if they are missing, `read` changes nothing.

    Raises:
        StoreError: The database cannot be opened or created.
    """

    def __init__(self, location: Path | str, mode: Literal["create", "read"] = "create") -> None:
        self._is_file = isinstance(location, Path)
        if mode == "read":
            self._db: SqlConnection = connect(location, "read")
            return
        if isinstance(location, Path):
            location.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._db = connect(location, "create")
        with self._db.write_transaction(exclusive=True):
            if not self._db.has_table("monitor_spans"):
                self._db.run_script(
                    (files("benchflow_dashboard.monitor") / "schema.sql").read_text()
                )

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def query(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement, and return its rows. Numbers are `int` and `float`."""
        rows = self._db.query(sql, values)
        return rows if self._is_file else [tuple(map(_plain, row)) for row in rows]

    @contextmanager
    def transaction(self) -> Generator["MonitorDatabase"]:
        """Run the block's statements as one durable transaction."""
        with self._db.write_transaction():
            yield self

    def tidy(self) -> None:
        """Do the upkeep that is due."""
        self._db.tidy(is_idle=True)

    def keep_spans(self, rows: Iterable[SpanRow], now: float) -> None:
        """Store spans durably, and open their traces. Repeats change nothing."""
        known = list(rows)
        with self._db.write_transaction(sum(len(row.body) for row in known)):
            self._db.execute_many(_KEEP_SPAN, [_span_row(row, now) for row in known])
            traces = dict.fromkeys(row.trace for row in known)
            self._db.execute_many(_OPEN, [(trace, now, trace) for trace in traces])

    def open_traces(self, limit: int = 500) -> list[OpenTrace]:
        """Return the open traces, those that changed first before others."""
        sql = "SELECT trace, changed, folded, has_root FROM monitor_open ORDER BY changed LIMIT ?"
        return [OpenTrace(r[0], r[1], r[2], bool(r[3])) for r in self._db.query(sql, (limit,))]

    def conversation_of(self, trace: str) -> tuple[list[Span], list[LogRecord], set[str]]:
        """Return the spans, the log records and the traces of the conversation of a trace.

        Traces that name the same conversation belong together, at most `MAX_TRACES` of them.
        """
        traces, names, fresh = {trace}, set[str](), {trace}
        while fresh and len(traces) < MAX_TRACES:
            new = set[str]().union(*map(self._names, fresh)) - names
            names |= new
            fresh = set[str]().union(*map(self._traces, new)) - traces
            traces |= set(sorted(fresh)[: MAX_TRACES - len(traces)])
        bodies: list[tuple[str, str]] = []
        for one in sorted(traces):
            sql = "SELECT id, body FROM monitor_spans WHERE trace = ?"
            bodies += [(row[0], row[1]) for row in self._db.query(sql, (one,))]
        return *parse_rows(bodies), traces

    def _traces(self, name: str) -> set[str]:
        sql = "SELECT DISTINCT trace FROM monitor_spans WHERE conversation = ? LIMIT ?"
        return {row[0] for row in self._db.query(sql, (name, MAX_TRACES))}

    def _names(self, trace: str) -> set[str]:
        sql = "SELECT DISTINCT conversation FROM monitor_spans WHERE trace = ?"
        return {row[0] for row in self._db.query(sql, (trace,)) if row[0] is not None}

    def keep_rollout(
        self,
        rollout: ObservedRollout,
        facts: RolloutFacts,
        scores: Iterable[Score],
        *,
        is_closed: bool,
        now: float,
    ) -> None:
        """Store a rollout in place of its earlier row, with all its rewards."""
        error = next((node.error for node in rollout.tree.leaves if node.error), None)
        values = (
            rollout.id,
            rollout.service,
            rollout.version,
            rollout.environment,
            rollout.tree.status,
            int(is_closed),
            rollout.started_at,
            rollout.ended_at,
            now,
            rollout.spans,
            rollout.unknown_spans,
            ",".join(rollout.models),
            ",".join(rollout.dialects),
            "" if error is None else f"{error.type}: {error.message}"[:1000],
            *astuple(facts),
        )
        rows = [*_reward_rows(rollout.id, scores), *_reported(rollout.id, rollout.evaluations)]
        with self._db.write_transaction():
            self._db.query("DELETE FROM monitor_rollouts WHERE id = ?", (rollout.id,))
            self._db.query(_KEEP_ROLLOUT, values)
            self._db.query("DELETE FROM monitor_rewards WHERE rollout = ?", (rollout.id,))
            self._db.execute_many(_KEEP_REWARD, rows)

    def settle(self, traces: Iterable[OpenTrace], *, is_closed: bool, now: float) -> None:
        """Close open traces, or note that they were folded. One that changed since stays open."""
        sql = (
            "DELETE FROM monitor_open WHERE trace = ? AND changed = ?"
            if is_closed
            else "UPDATE monitor_open SET folded = ? WHERE trace = ? AND changed = ?"
        )
        with self._db.write_transaction():
            self._db.execute_many(
                sql,
                [(t.trace, t.changed) if is_closed else (now, t.trace, t.changed) for t in traces],
            )

    def delete_before(self, moment: float, limit: int = 5_000) -> int:
        """Delete spans that came before `moment`. Rollouts and rewards stay. Return the number."""
        sql = "SELECT trace, id FROM monitor_spans WHERE received < ? ORDER BY received LIMIT ?"
        old = self._db.query(sql, (moment, limit))
        with self._db.write_transaction():
            self._db.execute_many("DELETE FROM monitor_spans WHERE trace = ? AND id = ?", old)
        return len(old)


def _plain(value: object) -> object:
    # Postgres has means of integers as decimals, which JSON and arithmetic with floats refuse.
    if not isinstance(value, Decimal):
        return value
    # A sum of integers has no digits behind the point, and a mean has.
    return float(value) if int(value.as_tuple().exponent) < 0 else int(value)


def _span_row(row: SpanRow, now: float) -> Row:
    times = (row.start_ns, row.end_ns)
    return (row.trace, row.id, row.conversation, *times, int(row.is_root), now, row.body)


def _reward_rows(rollout: str, scores: Iterable[Score]) -> list[Row]:
    rows: list[Row] = []
    for score in scores:
        verdict = score.verdict
        space, error = verdict.space, "" if verdict.reward is not None else verdict.error or ""
        row = (rollout, score.source, space, "terminal", "", verdict.reward, error[:1000])
        rows += [row, *_reported(rollout, verdict.events)]
    return rows


def _reported(rollout: str, events: Iterable[RewardEvent]) -> list[Row]:
    return [
        (rollout, e.source[:200], e.space, e.granularity, e.step_id or "", e.value, "")
        for e in events
    ]
