"""`bench monitor run` sends each alert once, signed, to a real receiver that fails at first."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_dashboard.monitor.alerts import silence
from benchflow_dashboard.monitor.database import MonitorDatabase
from dashboard_process import DashboardProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "key-of-the-hook"
RULES = """
grace_sec = 0.1
check_sec = 2
quiet_sec = 3

[[alerts]]
name = "worse tools"
kind = "drift"
metric = "tool_error_rate"
window_min = 30
baseline_min = 600
delta = 0.1
service = "shop"

[[alerts]]
name = "nobody reports"
kind = "absence"
service = "gone"
window_min = 30

[[alerts]]
name = "silenced"
kind = "threshold"
metric = "tool_error_rate"
above = 0.2
service = "shop"
window_min = 30

[webhook]
url = "URL"
"""


class Hook:
    """A receiver of alerts. It refuses the first delivery of each alert."""

    def __init__(self) -> None:
        self.bodies: list[tuple[dict[str, Any], bytes, str]] = []
        self.refused: set[str] = set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                alert = json.loads(body)
                is_first = (key := f"{alert['id']} {alert['event']}") not in hook.refused
                hook.refused.add(key)
                if not is_first:
                    signature = self.headers["X-BenchFlow-Signature"]
                    hook.bodies.append((alert, body, signature))
                self.send_response(503 if is_first else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/alerts"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def events(self) -> Counter[tuple[str, str]]:
        """Return how often each event of each rule was taken."""
        return Counter((alert["rule"], alert["event"]) for alert, _, _ in self.bodies)


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    yield hook
    hook.close()


@pytest.fixture
def server(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DashboardProcess]:
    monkeypatch.setenv("BENCHFLOW_WEBHOOK_KEY", KEY)
    server = DashboardProcess(tmp_path)
    (tmp_path / "monitor.toml").write_text(RULES.replace("URL", hook.url))
    yield server
    server.kill()


def _records(service: str, ended: float, count: int, fails: int) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for number in range(count):
        shared = {
            "rollout": f"{service}-{ended:.0f}-{number}",
            "resource": {"service": service, "version": "1", "environment": "live"},
        }
        status = "failed" if number < fails else "completed"
        step = {
            "kind": "step",
            "index": 0,
            "ts": ended,
            "started_at": ended - 1,
            "tool_calls": [{"id": "c", "name": "find"}],
            "observations": [{"tool_call_id": "c", "content": "x", "status": status}],
        }
        records += [shared | step, shared | {"kind": "ended", "index": 1, "ts": ended}]
    return records


@pytest.mark.timeout(300)
def _queued(home: Path) -> int:
    database = MonitorDatabase(home / "monitor.db", "read")
    try:
        ((count,),) = database.query("SELECT count(*) FROM monitor_deliveries")
    finally:
        database.close()
    assert isinstance(count, int)
    return count


def test_drift_and_absence_reach_the_webhook_once_and_a_silenced_alert_does_not(
    server: DashboardProcess, hook: Hook, tmp_path: Path
) -> None:
    now = time.time()
    database = MonitorDatabase(tmp_path / "monitor.db")
    silence(database, "silenced", "*", now + 3600, "ana", "deploy")
    database.close()
    server.start()

    server.post_records(_records("shop", now - 7200, 60, fails=3))
    server.post_records(_records("gone", now - 7200, 5, fails=0))
    server.post_records(_records("shop", now - 60, 40, fails=30))
    opened = {("worse tools", "opened"), ("nobody reports", "opened")}
    wait_until(lambda: opened <= set(hook.events()), "the alerts")
    # A server that is killed between a delivery and its note repeats the delivery.
    wait_until(lambda: _queued(tmp_path) == 0, "the notes of the deliveries")
    # A restart must not alert again.
    server.kill()
    server.start()
    server.post_records(_records("gone", now - 30, 3, fails=0))
    wait_until(lambda: ("nobody reports", "resolved") in hook.events(), "the end of an alert")

    taken = {("worse tools", "opened"): 1, ("nobody reports", "opened"): 1}
    assert hook.events() == {**taken, ("nobody reports", "resolved"): 1}
    for _, body, signature in hook.bodies:
        parts = dict(part.split("=") for part in signature.split(","))
        signed = f"{parts['t']}.".encode() + body
        assert parts["v1"] == hmac.new(KEY.encode(), signed, hashlib.sha256).hexdigest()
        assert abs(time.time() - int(parts["t"])) < 300
    drift = next(alert for alert, _, _ in hook.bodies if alert["rule"] == "worse tools")
    assert (drift["n"], drift["baseline_n"]) == (40, 60)
    assert (drift["value"], drift["baseline"]) == (0.75, 0.05)
    for part in ("tool_error_rate is 0.75 (n=40, 30 min)", "0.05 (n=60, 600 min)"):
        assert part in drift["message"]
    page = server.get("/alerts")
    assert "silenced" in page
    assert "worse tools" in page
