"""Alerts open once, name their numbers, and reach a webhook that was away."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_contracts import UsageError
from benchflow_dashboard.monitor.alerts import ALERT_COLUMNS, AlertManager, open_alerts, silence
from benchflow_dashboard.monitor.config import WebhookTable
from benchflow_dashboard.monitor.database import MonitorDatabase
from benchflow_dashboard.monitor.metrics import Selection, quantile, sample, series
from benchflow_dashboard.monitor.rules import read_rules
from benchflow_dashboard.monitor.webhook import SIGNATURE_HEADER, WebhookSender, sign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchflow_dashboard.monitor.rules import Rule
    from benchflow_store.database import Location

HOUR = 3600.0
DAY = 24 * HOUR
START = 1_000_000.0


class Clock:
    """The wall clock of a test."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database(location: Location) -> Iterator[MonitorDatabase]:
    database = MonitorDatabase(location)
    yield database
    database.close()


def _keep(database: MonitorDatabase, rows: list[tuple[str, float, float | None]]) -> None:
    """Store closed rollouts: the version, the end and the reward of each."""
    columns = "id, service, version, environment, status, closed, started, ended, updated, steps,"
    columns += (
        " tool_calls, tool_errors, loops, asks, spans, unknown_spans, models, dialects, error"
    )
    sql = f"INSERT INTO monitor_rollouts ({columns}) VALUES (?, 'shop', ?, 'live', 'completed', 1,"
    sql += " ?, ?, ?, 1, 1, 0, 0, 0, 1, 0, '', '', '')"
    reward = "INSERT INTO monitor_rewards VALUES (?, 'quality', 'output', 'terminal', '', ?, '')"
    ((count,),) = database.query("SELECT COUNT(*) FROM monitor_rollouts")
    with database.transaction():
        for number, (version, ended, value) in enumerate(rows, count):
            name = f"r{number}"
            database.query(sql, (name, version, ended - 2, ended, ended))
            database.query(reward, (name, value))


def _manager(
    location: Location, clock: Clock, *tables: dict[str, Any], sends: bool = False
) -> AlertManager:
    rules = read_rules(tables)
    return AlertManager(location, rules, sends=sends, clock=clock)


def _days(
    dice: random.Random, days: int, mean: float, since: float
) -> list[tuple[str, float, float]]:
    hours = range(days * 24)
    return [
        ("1", since + hour * HOUR + dice.random() * HOUR, float(dice.random() < mean))
        for hour in hours
        for _ in range(40)
    ]


DRIFT = {"name": "quality", "kind": "drift", "metric": "reward:quality", "window_min": 180}


@pytest.mark.timeout(200)
def test_ten_clean_days_give_no_alert_and_a_drift_is_seen_within_the_window(
    database: MonitorDatabase, location: Location
) -> None:
    dice = random.Random(7)
    clean = _days(dice, 10, 0.8, START)
    drifted = _days(dice, 1, 0.4, START + 10 * DAY)
    _keep(database, [*clean, *drifted])
    clock = Clock()
    manager = _manager(location, clock, DRIFT)

    for hour in range(4, 240, 2):
        clock.now = START + hour * HOUR
        assert manager.check() == []
    opened_after = None
    for minute in range(0, 181, 15):
        clock.now = START + 10 * DAY + minute * 60
        if manager.check():
            opened_after = minute
            break

    manager.close()
    assert opened_after is not None
    assert opened_after <= 180
    (alert,) = open_alerts(database)
    assert alert.n > 20
    assert alert.baseline_n is not None
    assert alert.value is not None
    assert alert.baseline == pytest.approx(0.8, abs=0.05)
    for part in ("reward:quality", "n=", "180 min", "1440 min"):
        assert part in alert.message


def test_an_alert_opens_once_and_is_resolved_when_its_rule_is_quiet(
    database: MonitorDatabase, location: Location
) -> None:
    rule = {"name": "slow", "kind": "threshold", "metric": "latency", "above": 1.0, "min_n": 3}
    _keep(database, [("1", START - 10, None)] * 3)
    clock = Clock()
    manager = _manager(location, clock, rule)
    assert [alert.rule for alert in manager.check()] == ["slow"]
    clock.now += 60
    assert manager.check() == []

    restarted = _manager(location, clock, rule)
    assert restarted.check() == [], "a restart does not alert again"
    clock.now += 2 * HOUR
    assert [alert.rule for alert in restarted.check()] == ["slow"], "the resolved alert"
    assert open_alerts(database) == []
    clock.now += HOUR
    assert restarted.check() == []
    manager.close()
    restarted.close()


class MeetingRules(list["Rule"]):
    """Rules that two checks begin to read at the same time."""

    meeting: threading.Barrier

    def __iter__(self) -> Iterator[Rule]:
        self.meeting.wait(30)
        return super().__iter__()


def test_two_servers_that_check_at_one_time_open_and_resolve_an_alert_once(
    database: MonitorDatabase, location: Location
) -> None:
    _keep(database, [("1", START - 60, 0.0)])
    table = {"name": "low", "kind": "threshold", "metric": "reward:quality", "below": 0.5}
    rules = MeetingRules(read_rules([{**table, "min_n": 1}]))
    rules.meeting = threading.Barrier(2)
    clock = Clock()
    managers = [
        AlertManager(location, rules, sends=True, quiet_sec=60.0, clock=clock) for _ in range(2)
    ]

    def check_all() -> int:
        with ThreadPoolExecutor(2) as pool:
            return sum(len(found) for found in pool.map(AlertManager.check, managers))

    assert check_all() == 1
    assert check_all() == 0
    clock.now = START + 2 * HOUR
    assert check_all() == 1

    for manager in managers:
        manager.close()
    assert open_alerts(database) == []
    sent = database.query("SELECT event FROM monitor_deliveries ORDER BY event")
    assert sent == [("opened",), ("resolved",)]


def test_a_database_in_which_an_alert_is_open_twice_keeps_the_older_one(
    database: MonitorDatabase, location: Location
) -> None:
    with database.transaction():
        database.query("DROP INDEX monitor_alerts_open")
        for name, opened in (("new", START + 1), ("old", START)):
            values = f"('{name}', 'low', '1', {opened}, NULL, '', 1, 0, NULL, NULL, 0)"
            database.query(f"INSERT INTO monitor_alerts ({ALERT_COLUMNS}) VALUES {values}")

    MonitorDatabase(location).close()

    assert [alert.id for alert in open_alerts(database)] == ["old"]


def test_each_version_has_an_alert_of_its_own_and_few_rollouts_have_none(
    database: MonitorDatabase, location: Location
) -> None:
    rule = {
        "name": "bad",
        "kind": "threshold",
        "metric": "reward:quality",
        "below": 0.5,
        "by": "version",
        "min_n": 3,
    }
    good = [("good", START - 5, 1.0)] * 5
    bad = [("bad", START - 5, 0.0)] * 5
    _keep(database, [*good, *bad, ("rare", START - 5, 0.0)])
    clock = Clock()
    manager = _manager(location, clock, rule)

    (alert,) = manager.check()

    manager.close()
    assert (alert.group, alert.n, alert.value) == ("bad", 5, 0.0)


def test_absence_needs_a_baseline(database: MonitorDatabase, location: Location) -> None:
    clock = Clock()
    manager = _manager(location, clock, {"name": "silent", "kind": "absence", "window_min": 60})
    assert manager.check() == [], "a service that never ran is not absent"
    _keep(database, [("1", START - 5, 1.0)])
    assert manager.check() == []
    clock.now += 2 * HOUR

    (alert,) = manager.check()

    manager.close()
    assert alert.message == "0 rollouts in 60 min, 1 in the baseline"


def test_a_silenced_alert_is_listed_and_not_sent(
    database: MonitorDatabase, location: Location
) -> None:
    _keep(database, [("1", START - 5, 1.0)])
    clock = Clock()
    rule = {"name": "busy", "kind": "threshold", "metric": "rollouts", "above": 0.5, "min_n": 1}
    manager = _manager(location, clock, rule, sends=True)
    silence(database, "busy", "*", START + HOUR, "ana", "deploy")

    (alert,) = manager.check()

    manager.close()
    assert alert.is_silenced
    assert database.query("SELECT * FROM monitor_deliveries") == []


def test_a_webhook_that_was_away_gets_a_signed_alert_once(
    database: MonitorDatabase, location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_WEBHOOK_KEY", "key-of-the-hook")
    received: list[tuple[str, bytes]] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.headers[SIGNATURE_HEADER], body))
            self.send_response(200 if len(received) > 1 else 503)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _keep(database, [("1", START - 5, 1.0)])
    clock = Clock()
    rule = {"name": "busy", "kind": "threshold", "metric": "rollouts", "above": 0.5, "min_n": 1}
    manager = _manager(location, clock, rule, sends=True)
    table = WebhookTable(url=f"http://127.0.0.1:{server.server_address[1]}/hook")
    sender = WebhookSender(database, table, clock)
    manager.check()

    assert asyncio.run(sender.send_due()) == 0
    assert asyncio.run(sender.send_due()) == 0, "the next try waits"
    clock.now += 3
    assert asyncio.run(sender.send_due()) == 1
    clock.now += DAY
    assert asyncio.run(sender.send_due()) == 0

    server.shutdown()
    server.server_close()
    thread.join()
    manager.close()
    signature, body = received[1]
    assert json.loads(body)["event"] == "opened"
    assert signature == sign("key-of-the-hook", int(START + 3), body.decode())


@pytest.mark.parametrize(
    ("table", "place"),
    [
        ({"name": "a", "kind": "other"}, "alerts[0]"),
        ({"name": "a", "kind": "threshold", "metric": "speed", "above": 1}, "alerts[0]"),
        ({"name": "a", "kind": "threshold", "metric": "cost"}, "alerts[0]"),
        ({"name": "a", "kind": "drift", "metric": "cost", "z": 0}, "alerts[0].z"),
        ({"name": "a", "kind": "absence", "window": 3}, "alerts[0].window"),
    ],
)
def test_a_wrong_rule_names_its_key(table: dict[str, Any], place: str) -> None:
    with pytest.raises(UsageError) as error:
        read_rules([table])

    assert place in str(error.value)


def test_two_rules_of_one_name_are_refused() -> None:
    rule = {"name": "a", "kind": "absence"}
    with pytest.raises(UsageError, match="two alerts are named 'a'"):
        read_rules([rule, rule])


def test_samples_quantiles_and_series_leave_out_what_is_unknown(database: MonitorDatabase) -> None:
    values = [None, 0.0, 0.5, 1.0]
    _keep(database, [(f"{n % 2}", START + n * 10, value) for n, value in enumerate(values)])
    selection = Selection(START, START + 40)

    seen = sample(database, "reward:quality", selection)

    assert (seen.n, seen.mean, seen.variance) == (3, 0.5, pytest.approx(0.25))
    assert quantile(database, "reward:quality", selection, 0.5) == 0.5
    assert quantile(database, "cost", selection, 0.5) is None
    bins = series(database, "reward:quality", selection, bins=4, by="version")
    assert [(b.group, b.start - START, b.n, b.mean) for b in bins] == [
        ("1", 10.0, 1, 0.0),
        ("0", 20.0, 1, 0.5),
        ("1", 30.0, 1, 1.0),
    ]
