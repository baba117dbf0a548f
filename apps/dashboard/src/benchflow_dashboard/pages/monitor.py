"""The pages of monitor mode: charts, rollouts, one rollout, and alerts."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from benchflow_store import StepLine, step_lines
from benchflow_traces import ObservedRollout, observed_rollouts
from litestar import get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.monitor.alerts import ALERT_COLUMNS, Alert, alert_of
from benchflow_dashboard.monitor.charts import (
    CHARTS,
    HEIGHT,
    WIDTH,
    Chart,
    RewardRow,
    chart,
    reward_rows,
)
from benchflow_dashboard.monitor.metrics import Group, Selection, groups, sample
from benchflow_dashboard.monitor.service import MonitorService
from benchflow_dashboard.security.access import operator

from .page import PageRequest, render

WINDOWS: Final[Mapping[str, float]] = {
    "1h": 3600,
    "6h": 6 * 3600,
    "24h": 86_400,
    "7d": 7 * 86_400,
    "30d": 30 * 86_400,
}
GROUPS: Final[tuple[Group, ...]] = ("version", "environment", "service", "")
PAGE: Final = 50
ROLLOUT_COLUMNS: Final = (
    "id, service, version, environment, status, closed, started, ended, steps, tool_calls,"
    " tool_errors, loops, asks, input_tokens, output_tokens, cost, models, dialects, error,"
    " unknown_spans"
)


@dataclass(frozen=True, slots=True)
class MonitorQuery:
    """What the URL of the page says."""

    window: str = "24h"
    by: Group = "version"
    service: str = ""
    environment: str = ""

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> "MonitorQuery":
        """Read the query parameters. Unknown values are the defaults."""
        window, by = str(params.get("window", "")), str(params.get("by", "version"))
        return cls(
            window=window if window in WINDOWS else "24h",
            by=by if by in GROUPS else "version",
            service=str(params.get("service", "")),
            environment=str(params.get("environment", "")),
        )

    def url(self, **changes: str) -> str:
        """Return the URL of the page with some changes."""
        fields = {
            "window": self.window,
            "by": self.by,
            "service": self.service,
            "environment": self.environment,
        }
        return f"/monitor?{urlencode({k: v for k, v in {**fields, **changes}.items() if v})}"

    def selection(self, now: float) -> Selection:
        """Return the rollouts that the page counts."""
        since = now - WINDOWS[self.window]
        return Selection(since, now, self.service or None, environment=self.environment or None)


@dataclass(frozen=True, slots=True)
class MonitorView:
    """The charts and the rollouts of a window."""

    query: MonitorQuery
    closed: int
    running: int
    unknown_spans: int
    services: tuple[str, ...]
    environments: tuple[str, ...]
    groups: tuple[str, ...]
    charts: tuple[Chart, ...]
    rewards: tuple[RewardRow, ...]
    alerts: tuple[Alert, ...]
    rollouts: tuple[Mapping[str, Any], ...]


def monitor_view(monitor: MonitorService, query: MonitorQuery, now: float) -> MonitorView:
    """Return what the page shows. The command line prints the same."""
    selection = query.selection(now)
    window = (selection.since, selection.until)
    running, unknown = monitor.query(
        "SELECT COALESCE(SUM(1 - closed), 0), COALESCE(SUM(unknown_spans), 0)"
        " FROM monitor_rollouts WHERE ended >= ? AND ended < ?",
        window,
    )[0]
    shown = tuple(groups(monitor, selection, query.by))
    return MonitorView(
        query=query,
        closed=sample(monitor, "rollouts", selection).n,
        running=running,
        unknown_spans=unknown,
        services=tuple(groups(monitor, Selection(*window), "service")),
        environments=tuple(groups(monitor, Selection(*window), "environment")),
        groups=shown,
        charts=tuple(
            chart(monitor, metric, title, selection, query.by) for metric, title in CHARTS
        ),
        rewards=reward_rows(monitor, selection, query.by, shown),
        alerts=alerts_where(monitor, "resolved IS NULL"),
        rollouts=rollout_lines(monitor, query, selection),
    )


def rollout_lines(
    monitor: MonitorService, query: MonitorQuery, selection: Selection
) -> tuple[Mapping[str, Any], ...]:
    """Return the newest rollouts of a selection."""
    sql = f"SELECT {ROLLOUT_COLUMNS} FROM monitor_rollouts WHERE ended >= ? AND ended < ?"  # noqa: S608
    values: list[object] = [selection.since, selection.until]
    for name in ("service", "environment"):
        if chosen := getattr(query, name):
            sql += f" AND {name} = ?"
            values.append(chosen)
    rows = monitor.query(f"{sql} ORDER BY ended DESC, id LIMIT ?", (*values, PAGE))
    return tuple(rollout_line(row) for row in rows)


def rollout_line(row: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return a row with its names."""
    return dict(zip(ROLLOUT_COLUMNS.replace(" ", "").split(","), row, strict=True))


def alerts_where(monitor: MonitorService, condition: str, limit: int = 200) -> tuple[Alert, ...]:
    """Return alerts, the newest first. `condition` is a constant of the caller."""
    sql = f"SELECT {ALERT_COLUMNS} FROM monitor_alerts WHERE {condition}"  # noqa: S608
    rows = monitor.query(f"{sql} ORDER BY opened DESC, id LIMIT ?", (limit,))
    return tuple(alert_of(row) for row in rows)


@get("/monitor", include_in_schema=False, sync_to_thread=True)
def show_monitor(request: PageRequest, monitor: NamedDependency[MonitorService | None]) -> Template:
    """Show the charts of production."""
    query = MonitorQuery.of(request.query_params)
    view = None if monitor is None else monitor_view(monitor, query, time.time())
    words = [f"--{name}={value}" for name, value in _words(query).items()]
    return render(
        request,
        "monitor.html",
        view,
        title="Monitor",
        section="monitor",
        cli=("bench", "monitor", "show", *words) if view else (),
        fragment="monitor_body.html",
        context={
            "windows": WINDOWS,
            "groupings": GROUPS,
            "query": query,
            "width": WIDTH,
            "height": HEIGHT,
        },
    )


def _words(query: MonitorQuery) -> Mapping[str, str]:
    fields = {
        "window": query.window if query.window != "24h" else "",
        "by": query.by if query.by != "version" else "",
        "service": query.service,
        "environment": query.environment,
    }
    return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class ObservedView:
    """One production rollout with its steps and rewards."""

    line: Mapping[str, Any]
    steps: tuple[tuple[str, str, tuple[StepLine, ...]], ...]
    """The id, the role and the lines of each step."""
    rewards: tuple[tuple[Any, ...], ...]
    """Source, space, granularity, step, value and error of each."""


def observed_view(monitor: MonitorService, rollout_id: str) -> ObservedView | None:
    """Return a production rollout, or None if its id is unknown.

    Its steps are empty if its spans were deleted by age.
    """
    sql = f"SELECT {ROLLOUT_COLUMNS} FROM monitor_rollouts WHERE id = ?"  # noqa: S608
    rows = monitor.query(sql, (rollout_id,))
    if not rows:
        return None
    rollout = load_rollout(monitor, rollout_id)
    rewards = monitor.query(
        "SELECT source, space, granularity, step, value, error FROM monitor_rewards"
        " WHERE rollout = ? ORDER BY granularity DESC, source, step",
        (rollout_id,),
    )
    steps = () if rollout is None else rollout.steps
    return ObservedView(
        rollout_line(rows[0]),
        tuple((step.id, step.role, tuple(step_lines(step))) for step in steps),
        tuple(rewards),
    )


def load_rollout(monitor: MonitorService, rollout_id: str) -> ObservedRollout | None:
    """Fold a stored rollout again from its spans."""
    spans, logs, _ = monitor.conversation_of(rollout_id)
    return next((r for r in observed_rollouts(spans, logs) if r.id == rollout_id), None)


@get("/monitor/r/{rollout:str}", include_in_schema=False, sync_to_thread=True)
def show_observed(
    request: PageRequest,
    monitor: NamedDependency[MonitorService | None],
    rollout: FromPath[str],
) -> Template:
    """Show one production rollout."""
    view = None if monitor is None else observed_view(monitor, rollout)
    if view is None:
        raise NotFoundException("no production rollout has this id")
    cli = ("bench", "monitor", "show", rollout)
    return render(request, "observed.html", view, title=rollout, section="monitor", cli=cli)


@get("/alerts", include_in_schema=False, sync_to_thread=True)
def show_alerts(request: PageRequest, monitor: NamedDependency[MonitorService | None]) -> Template:
    """Show open alerts, resolved ones and silences."""
    view = None
    if monitor is not None:
        view = {
            "open": alerts_where(monitor, "resolved IS NULL"),
            "resolved": alerts_where(monitor, "resolved IS NOT NULL", 50),
            "silences": monitor.query(
                "SELECT rule, grp, until, author, reason FROM monitor_silences"
                " WHERE until > ? ORDER BY until",
                (time.time(),),
            ),
            "rules": [rule.name for rule in monitor.rules],
        }
    cli = ("bench", "monitor", "alerts") if view else ()
    return render(request, "alerts.html", view, title="Alerts", section="alerts", cli=cli)


@post("/alerts/silence", include_in_schema=False, guards=[operator], status_code=303)
async def silence_alert(
    request: PageRequest, monitor: NamedDependency[MonitorService | None]
) -> Redirect:
    """Silence a rule for some hours."""
    form = await request.form()
    rule, group = str(form.get("rule", "")), str(form.get("group", "")) or "*"
    if monitor is None or rule not in {one.name for one in monitor.rules}:
        raise ValidationException("no rule has this name")
    try:
        hours = float(str(form.get("hours", "")))
    except ValueError:
        hours = 0.0
    if not 0 < hours <= 24 * 30:
        raise ValidationException("give a number of hours between 0 and 720")
    reason = str(form.get("reason", ""))
    until = time.time() + hours * 3600
    await asyncio.to_thread(monitor.silence, rule, group, until, "", reason)
    return Redirect("/alerts", status_code=303)
