"""The pages of monitor mode show what was received, scored and alerted."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from benchflow_dashboard import DashboardSettings, create_app
from benchflow_dashboard.monitor import views
from benchflow_dashboard.monitor.alerts import AlertManager
from benchflow_dashboard.monitor.assembler import Assembler
from benchflow_dashboard.monitor.config import MonitorConfig
from benchflow_dashboard.monitor.scoring import OnlineScorer
from benchflow_dashboard.monitor.views import MonitorQuery
from dashboard_forms import csrf_of
from litestar.testing import TestClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchflow_store.database import Location
    from litestar import Litestar

ADDRESS = "http://127.0.0.1:8642"
HOSTILE = "<img src=x onerror=alert(1)>"


def _records(rollout: str, version: str, *, fails: bool, text: str = "ok") -> list[dict[str, Any]]:
    now = time.time() - 60
    shared = {"rollout": rollout, "resource": {"service": "shop", "version": version}}
    status = "failed" if fails else "completed"
    step = {
        "kind": "step",
        "index": 0,
        "ts": now,
        "started_at": now - 2,
        "prompt": text,
        "message": text,
        "tool_calls": [{"id": "c", "name": "find", "arguments": {"q": text}}],
        "observations": [{"tool_call_id": "c", "content": text, "status": status}],
    }
    return [shared | step, shared | {"kind": "ended", "index": 1, "ts": now + 1}]


@pytest.fixture
def client(tmp_path: Path, location: Location) -> Iterator[TestClient[Litestar]]:
    (tmp_path / "jobs").mkdir()
    config = tmp_path / "monitor.toml"
    config.write_text(
        "[[alerts]]\nname = 'tools'\nkind = 'threshold'\nmetric = 'tool_error_rate'\n"
        "above = 0.5\nmin_n = 1\nby = 'version'\n"
    )
    settings = DashboardSettings(
        jobs_dir=tmp_path / "jobs",
        index=tmp_path / "index.db",
        monitor=location,
        monitor_config=config,
    )
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        records = [
            *_records("good-1", "1.7", fails=False),
            *_records("bad-1", "1.8", fails=True),
            *_records(HOSTILE, HOSTILE, fails=False, text=HOSTILE),
        ]
        body = json.dumps({"records": records}).encode()
        answer = client.post("/v1/benchflow/records", content=body)
        assert answer.json()["refused"] == []
        later = time.time() + 40
        assembler = Assembler(
            location,
            MonitorConfig(),
            OnlineScorer(MonitorConfig()),
            clock=lambda: later,
        )
        asyncio.run(assembler.assemble())
        assembler.close()
        manager = AlertManager(location, client.app.state["monitor"].rules)
        manager.check()
        manager.close()
        yield client


def test_the_monitor_compares_versions_by_space(client: TestClient[Litestar]) -> None:
    page = client.get("/monitor").text

    assert "3 rollouts" in page
    for text in ("tool errors", "1.7", "1.8", "tool_errors", "action", "good-1", "bad-1"):
        assert text in page
    assert "unknown</td>" in page, "tokens that nobody reported are unknown, not 0"


def test_a_filter_and_a_window_are_in_the_url(client: TestClient[Litestar]) -> None:
    page = client.get("/monitor?window=1h&by=environment&service=none").text

    assert "0 rollouts" in page
    assert "No rollout ended in this window" in page


def test_a_production_rollout_shows_its_steps_and_rewards(client: TestClient[Litestar]) -> None:
    page = client.get("/monitor/r/bad-1").text

    for text in ("find", "failed", "tool_errors", "0.00", "1 of 1 tool calls failed"):
        assert text in page
    assert client.get("/monitor/r/nothing").status_code == 404


def test_readers_share_a_view_that_is_costly_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[MonitorQuery] = []

    def make(_: object, query: MonitorQuery, now: float) -> float:
        made.append(query)
        ticks[0] += 0.1
        return now

    ticks, now = [0.0], [1000.0]
    monkeypatch.setattr(views, "monitor_view", make)
    monkeypatch.setattr(views.time, "perf_counter", lambda: ticks[0])
    shared = views.MonitorViews(None, lambda: now[0])  # type: ignore[arg-type]
    day, hour = MonitorQuery(), MonitorQuery(window="1h")

    assert [shared.view(day), shared.view(hour), shared.view(day)] == [1000.0, 1000.0, 1000.0]
    now[0] += 1.9
    assert shared.view(day) == 1000.0
    assert made == [day, hour]
    # Nobody waits for the next view, and nobody gets one that is much older.
    now[0] += 0.2
    assert shared.view(day) == 1000.0
    shared.close()
    assert shared.view(day) == 1002.1
    now[0] += 4.1
    assert shared.view(day) == 1006.2
    assert made == [day, hour, day, day]


def test_text_of_an_agent_is_never_markup(client: TestClient[Litestar]) -> None:
    for path in ("/monitor", f"/monitor/r/{HOSTILE}", "/alerts"):
        page = client.get(path)
        assert page.status_code == 200
        assert "<img" not in page.text


def test_an_alert_is_listed_and_its_rule_can_be_silenced(client: TestClient[Litestar]) -> None:
    page = client.get("/alerts").text
    assert "tool_error_rate is 1, above 0.5 (n=1, 60 min)" in page

    csrf = csrf_of(client)
    form = {"rule": "tools", "hours": "2", "reason": "deploy", "csrf": csrf}
    assert client.post("/alerts/silence", data=form, follow_redirects=False).status_code == 303
    assert "tools (every group) until" in client.get("/alerts").text
    for wrong in ({"rule": "other", "hours": "2"}, {"rule": "tools", "hours": "x"}):
        assert client.post("/alerts/silence", data={**wrong, "csrf": csrf}).status_code == 400


def test_without_monitor_mode_the_pages_say_how_to_start_it(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    settings = DashboardSettings(jobs_dir=tmp_path / "jobs", index=tmp_path / "index.db")
    with TestClient(create_app(settings), base_url=ADDRESS) as client:
        for path in ("/monitor", "/alerts"):
            assert "bench monitor run" in client.get(path).text
