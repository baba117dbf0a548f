"""Alerts: one for each time that a rule begins to fire, until it is quiet again."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchflow_store.database.connection import Row

from .database import MonitorDatabase
from .rules import Finding, Rule, check_rule

ALERT_COLUMNS = "id, rule, grp, opened, resolved, message, n, value, baseline, baseline_n, silenced"


@dataclass(frozen=True, slots=True)
class Alert:
    """One time that a rule fired for one group."""

    id: str
    rule: str
    group: str
    opened: float
    resolved: float | None
    message: str
    n: int
    value: float | None
    baseline: float | None
    baseline_n: int | None
    is_silenced: bool
    """Whether it opened during a silence. It is listed, and not sent."""


class AlertManager:
    """Checks the rules and keeps the alerts. Use it from one thread at a time.

    Several servers may check the rules of one database: each alert is opened, sent and resolved
    once.

    A rule that fires again for a group whose alert is open makes no new alert. An alert is resolved
    when its rule did not fire for `quiet_sec`, so a value that swings around its limit makes one
    alert. That also holds for a server that was restarted: the state is in the database.
    """

    def __init__(
        self,
        location: Path | str,
        rules: Sequence[Rule],
        *,
        sends: bool = False,
        quiet_sec: float = 300.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._location = location
        self._rules = rules
        self._sends = sends
        self._quiet_sec = quiet_sec
        self._clock = clock
        self._database: MonitorDatabase | None = None
        self._fired: dict[tuple[str, str], float] = {}

    def check(self) -> list[Alert]:
        """Check all rules once. Return the alerts that opened or were resolved.

        Raises:
            StoreError: The database failed.
        """
        database, now = self._connected(), self._clock()
        is_open = {(one.rule, one.group): one for one in open_alerts(database)}
        changed: list[Alert] = []
        for finding in (f for rule in self._rules for f in check_rule(database, rule, now)):
            key = (finding.rule, finding.group)
            if finding.is_firing:
                self._fired[key] = now
                if key not in is_open and (opened := self._open(finding, now)):
                    changed.append(opened)
        for key, alert in is_open.items():
            # After a restart, the time of the last check that fired is not known.
            is_quiet = now - self._fired.setdefault(key, now) >= self._quiet_sec
            if is_quiet and (resolved := self._resolve(alert, now)):
                changed.append(resolved)
        return changed

    def close(self) -> None:
        """Close the database. Idempotent."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _open(self, finding: Finding, now: float) -> Alert | None:
        """Open an alert; `None` if another server has opened it since this check began."""
        alert = Alert(
            id=uuid.uuid4().hex,
            rule=finding.rule,
            group=finding.group,
            opened=now,
            resolved=None,
            message=finding.message,
            n=finding.n,
            value=finding.value,
            baseline=finding.baseline,
            baseline_n=finding.baseline_n,
            is_silenced=self._is_silenced(finding, now),
        )
        sql = (
            f"INSERT INTO monitor_alerts ({ALERT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
            " ON CONFLICT (rule, grp) WHERE resolved IS NULL DO NOTHING RETURNING id"
        )
        values = (
            *(alert.id, alert.rule, alert.group, now, None, alert.message, alert.n, alert.value),
            *(alert.baseline, alert.baseline_n, int(alert.is_silenced)),
        )
        with self._connected().transaction() as database:
            if not database.query(sql, values):
                return None
            self._queue(database, alert, "opened", now)
        return alert

    def _resolve(self, alert: Alert, now: float) -> Alert | None:
        """Resolve an alert; `None` if another server has resolved it."""
        with self._connected().transaction() as database:
            sql = "UPDATE monitor_alerts SET resolved = ? WHERE id = ? AND resolved IS NULL"
            if not database.query(f"{sql} RETURNING id", (now, alert.id)):
                return None
            self._queue(database, alert, "resolved", now)
        return alert

    def _queue(self, database: MonitorDatabase, alert: Alert, event: str, now: float) -> None:
        if not self._sends or alert.is_silenced:
            return
        body = {
            "event": event,
            "id": alert.id,
            "rule": alert.rule,
            "group": alert.group,
            "message": alert.message,
            "n": alert.n,
            "value": alert.value,
            "baseline": alert.baseline,
            "baseline_n": alert.baseline_n,
            "opened_at": alert.opened,
            "at": now,
        }
        sql = "INSERT INTO monitor_deliveries (alert, event, body, tries, next_try, error)"
        sql += " VALUES (?, ?, ?, 0, ?, '')"
        database.query(sql, (alert.id, event, json.dumps(body), now))

    def _is_silenced(self, finding: Finding, now: float) -> bool:
        sql = "SELECT 1 FROM monitor_silences WHERE rule = ? AND grp IN (?, '*') AND until > ?"
        return bool(self._connected().query(sql, (finding.rule, finding.group, now)))

    def _connected(self) -> MonitorDatabase:
        if self._database is None:
            self._database = MonitorDatabase(self._location)
        return self._database


def open_alerts(database: MonitorDatabase) -> list[Alert]:
    """Return the alerts that are not resolved, the newest first."""
    sql = f"SELECT {ALERT_COLUMNS} FROM monitor_alerts WHERE resolved IS NULL"  # noqa: S608
    return [alert_of(row) for row in database.query(f"{sql} ORDER BY opened DESC, id")]


def alert_of(row: Row) -> Alert:
    """Return the alert of a row with all columns."""
    return replace(Alert(*row), is_silenced=bool(row[-1]))


def silence(
    database: MonitorDatabase, rule: str, group: str, until: float, author: str, reason: str
) -> None:
    """Send no alert of a rule and a group until a time. A group of `*` is every group."""
    sql = "INSERT INTO monitor_silences (rule, grp, until, author, reason)"
    sql += " VALUES (?, ?, ?, ?, ?) ON CONFLICT (rule, grp) DO UPDATE SET"
    sql += " until = excluded.until, author = excluded.author, reason = excluded.reason"
    with database.transaction():
        database.query(sql, (rule, group, until, author[:200], reason[:1000]))
