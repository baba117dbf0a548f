"""The database of monitor mode: spans as they came, and rollouts as they were folded."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from decimal import Decimal
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal

from benchflow_contracts import RewardEvent, VerifyResult
from benchflow_store.database.connection import Row, SqlConnection, connect
from benchflow_traces import LogRecord, ObservedRollout, Span

from .codec import SpanRow, parse_rows
from .facts import RolloutFacts

MAX_TRACES: Final = 1_000
"""Traces of one conversation."""
MAX_SPANS: Final = 20_000
"""Spans of one conversation that are folded. Later ones by their ids are stored only."""
_CLOCK_SEC: Final = 60.0
"""How far the clock of a program may be ahead."""
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
_EVAL_COLUMNS: Final = (
    "id, service, version, environment, status, closed, started, ended, updated, spans,"
    " unknown_spans, models, dialects, error, steps, tool_calls, tool_errors, loops, asks,"
    " input_tokens, output_tokens, cost"
)
_KEEP_EVAL: Final = (
    f"INSERT INTO monitor_evals ({_EVAL_COLUMNS}, job, mark)"  # noqa: S608 - names of this module
    f" VALUES ({', '.join(['?'] * 24)})"
)
_FACTS: Final = attrgetter(*(field.name for field in fields(RolloutFacts)))
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


@dataclass(frozen=True, slots=True)
class FoldedRollout:
    """A rollout as it is stored."""

    rollout: ObservedRollout
    facts: RolloutFacts
    scores: Sequence[Score]
    is_closed: bool


@dataclass(frozen=True, slots=True)
class FoldedConversation:
    """The rollouts of a conversation, and its open traces as they were when it was read."""

    traces: Sequence[OpenTrace]
    rollouts: Sequence[FoldedRollout]
    is_closed: bool


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
            scripts = files("benchflow_dashboard.monitor")
            for table, script in (("monitor_spans", "schema.sql"), ("monitor_evals", "evals.sql")):
                if not self._db.has_table(table):
                    self._db.run_script((scripts / script).read_text())
            self._db.run_script((scripts / "open_alerts.sql").read_text())

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

    def tidy(self, *, is_idle: bool) -> None:
        """Do the upkeep that is due. A caller without waiting spans is idle."""
        self._db.tidy(is_idle=is_idle)

    def keep_spans(self, rows: Iterable[SpanRow], now: float) -> None:
        """Store spans durably, and open their traces. Repeats change nothing."""
        # In one order: two processes that lock the same rows would wait for each other.
        known = sorted(rows, key=lambda row: (row.trace, row.id))
        with self._db.write_transaction(sum(len(row.body) for row in known)):
            self._db.execute_many(_KEEP_SPAN, [_span_row(row, now) for row in known])
            traces = dict.fromkeys(row.trace for row in known)
            self._db.execute_many(_OPEN, [(trace, now, trace) for trace in traces])

    def traces_over(self, rooted_before: float, before: float, limit: int) -> list[OpenTrace]:
        """Return the open traces that are over, those that changed first before others.

        A trace is over without a change since `before`, or with its root since `rooted_before`.
        """
        where = "changed <= ? OR (has_root = 1 AND changed <= ?) ORDER BY changed LIMIT ?"
        return self._open_where(where, (before, rooted_before, limit))

    def traces_changed(self, folded_before: float, limit: int) -> list[OpenTrace]:
        """Return open traces that changed since they were folded, which is before a time.

        Those that were never folded come first.
        """
        where = "changed > folded AND folded <= ? ORDER BY folded, changed LIMIT ?"
        return self._open_where(where, (folded_before, limit))

    def open_among(self, traces: Iterable[str]) -> list[OpenTrace]:
        """Return those of some traces that are open."""
        return [one for trace in traces for one in self._open_where("trace = ?", (trace,))]

    def _open_where(self, condition: str, values: Sequence[object]) -> list[OpenTrace]:
        sql = f"SELECT trace, changed, folded, has_root FROM monitor_open WHERE {condition}"  # noqa: S608
        return [OpenTrace(r[0], r[1], r[2], bool(r[3])) for r in self._db.query(sql, values)]

    def conversation_of(self, trace: str) -> tuple[list[Span], list[LogRecord], set[str]]:
        """Return the spans, the log records and the traces of the conversation of a trace."""
        traces = self.traces_with(trace)
        return *self.items_of(traces), traces

    def traces_with(self, trace: str) -> set[str]:
        """Return the traces of the conversation of a trace.

        Traces that name the same conversation belong together, at most `MAX_TRACES` of them.
        """
        traces, names, fresh = {trace}, set[str](), {trace}
        while fresh and len(traces) < MAX_TRACES:
            new = set[str]().union(*map(self._names, fresh)) - names
            names |= new
            fresh = set[str]().union(*map(self._traces, new)) - traces
            traces |= set(sorted(fresh)[: MAX_TRACES - len(traces)])
        return traces

    def items_of(self, traces: Iterable[str]) -> tuple[list[Span], list[LogRecord]]:
        """Return the spans and the log records of traces."""
        bodies: list[tuple[str, str]] = []
        for one in sorted(traces):
            sql = "SELECT id, body FROM monitor_spans WHERE trace = ? ORDER BY id LIMIT ?"
            rows = self._db.query(sql, (one, MAX_SPANS - len(bodies)))
            bodies += [(row[0], row[1]) for row in rows]
        return parse_rows(bodies)

    def _traces(self, name: str) -> set[str]:
        sql = "SELECT DISTINCT trace FROM monitor_spans WHERE conversation = ? LIMIT ?"
        return {row[0] for row in self._db.query(sql, (name, MAX_TRACES))}

    def _names(self, trace: str) -> set[str]:
        sql = (
            "SELECT DISTINCT conversation FROM monitor_spans"
            " WHERE trace = ? AND conversation IS NOT NULL"
        )
        return {row[0] for row in self._db.query(sql, (trace,))}

    def keep_conversations(self, folded: Iterable[FoldedConversation], now: float) -> None:
        """Store the rollouts of conversations in place of their earlier rows, with all rewards.

        Traces of a closed conversation are closed. A trace that changed since it was read stays
        open. A conversation that another process closed meanwhile is left as it is.
        """
        # Two processes may fold the same rollout: the second one must see what the first stored.
        with self._db.write_transaction(exclusive=True):
            kept = [one for one in folded if self._is_open(one)]
            rollouts = [rollout for one in kept for rollout in one.rollouts]
            keys = [(one.rollout.id,) for one in rollouts]
            rewards = [row for one in rollouts for row in _all_rewards(one)]
            closed = [(t.trace, t.changed) for one in kept if one.is_closed for t in one.traces]
            noted = [(now, t.trace) for one in kept if not one.is_closed for t in one.traces]
            self._db.execute_many("DELETE FROM monitor_rollouts WHERE id = ?", keys)
            self._db.execute_many(
                _KEEP_ROLLOUT, [_rollout_row(rollout, now) for rollout in rollouts]
            )
            self._db.execute_many("DELETE FROM monitor_rewards WHERE rollout = ?", keys)
            self._db.execute_many(_KEEP_REWARD, rewards)
            self._db.execute_many(
                "DELETE FROM monitor_open WHERE trace = ? AND changed = ?", closed
            )
            self._db.execute_many("UPDATE monitor_open SET folded = ? WHERE trace = ?", noted)

    def give_up(self, traces: Iterable[OpenTrace]) -> None:
        """Close traces without a rollout. Their spans stay."""
        with self._db.write_transaction():
            self._db.execute_many(
                "DELETE FROM monitor_open WHERE trace = ? AND changed = ?",
                [(one.trace, one.changed) for one in traces],
            )

    def _is_open(self, folded: FoldedConversation) -> bool:
        return len(self.open_among(one.trace for one in folded.traces)) == len(folded.traces)

    @property
    def has_evals(self) -> bool:
        """Whether the database has the table of evals: one of version 0.8.0 does not."""
        return self._db.has_table("monitor_evals")

    def eval_marks(self) -> Mapping[str, str]:
        """Return the mark of each stored leaf of an eval by its id."""
        return dict(self._db.query("SELECT id, mark FROM monitor_evals"))

    def keep_evals(self, job: str, mark: str, folded: Iterable[FoldedRollout], now: float) -> None:
        """Store leaves of rollouts of a job, with their rewards."""
        known = list(folded)
        keys = [one.rollout.id for one in known]
        with self._db.write_transaction(exclusive=True):
            self._delete_evals(keys)
            rows = [(*_rollout_row(one, now), job, mark) for one in known]
            self._db.execute_many(_KEEP_EVAL, rows)
            self._db.execute_many(_KEEP_REWARD, [r for one in known for r in _all_rewards(one)])

    def delete_evals(self, keys: Iterable[str]) -> None:
        """Delete leaves of evals, with their rewards."""
        with self._db.write_transaction(exclusive=True):
            self._delete_evals(list(keys))

    def _delete_evals(self, keys: Sequence[str]) -> None:
        rows = [(key,) for key in keys]
        self._db.execute_many("DELETE FROM monitor_evals WHERE id = ?", rows)
        self._db.execute_many("DELETE FROM monitor_rewards WHERE rollout = ?", rows)

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


def _rollout_row(folded: FoldedRollout, now: float) -> Row:
    rollout = folded.rollout
    # The charts have no place for a rollout of the future: its clock is wrong, its length may be.
    ahead = rollout.ended_at - now
    ahead = ahead if ahead > _CLOCK_SEC else 0.0
    error = next((node.error for node in rollout.tree.leaves if node.error), None)
    return (
        rollout.id,
        rollout.service,
        rollout.version,
        rollout.environment,
        rollout.final_status if folded.is_closed else rollout.tree.status,
        int(folded.is_closed),
        rollout.started_at - ahead,
        rollout.ended_at - ahead,
        now,
        rollout.spans,
        rollout.unknown_spans,
        ",".join(rollout.models),
        ",".join(rollout.dialects),
        "" if error is None else f"{error.type}: {error.message}"[:1000],
        *_FACTS(folded.facts),
    )


def _all_rewards(folded: FoldedRollout) -> list[Row]:
    rollout = folded.rollout
    reported = _reported(rollout.id, rollout.evaluations)
    return [*_reward_rows(rollout.id, folded.scores), *reported]


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
