"""The pages of monitor mode: charts, rollouts, one rollout, and alerts."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

from litestar import get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ValidationException
from litestar.params import FromPath
from litestar.response import Redirect, Template

from benchflow_dashboard.monitor.charts import BINS, HEIGHT, WIDTH
from benchflow_dashboard.monitor.reader import default_database
from benchflow_dashboard.monitor.service import MonitorService
from benchflow_dashboard.monitor.views import (
    GROUPS,
    WINDOWS,
    MonitorQuery,
    alerts_where,
    observed_view,
)
from benchflow_dashboard.security.access import access_of, checked_form, operator, user_of
from benchflow_dashboard.settings import DashboardSettings

from .page import AGES_SEC, LivePage, PageRequest, render


@get("/monitor", include_in_schema=False, sync_to_thread=True)
def show_monitor(
    request: PageRequest,
    monitor: NamedDependency[MonitorService | None],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show the charts of production."""
    query = MonitorQuery.of(request.query_params)
    view = None if monitor is None else monitor.views.view(query)
    words = [f"--{name}={value}" for name, value in _words(query).items()]
    return render(
        request,
        "monitor.html",
        view,
        title="Monitor",
        section="monitor",
        cli=("bench", "monitor", "show", *words, *_database_words(settings)) if view else (),
        fragment="monitor_body.html",
        context={
            "live": LivePage("monitor", refresh_sec=AGES_SEC) if view else None,
            "windows": WINDOWS,
            "groupings": GROUPS,
            "query": query,
            "width": WIDTH,
            "height": HEIGHT,
            "bins": BINS,
            "window_sec": WINDOWS[query.window],
        },
    )


def _database_words(settings: DashboardSettings) -> tuple[str, ...]:
    """Return the option for a file that is not the default. A URL may have a password."""
    place = settings.monitor
    is_named = isinstance(place, Path) and place != default_database()
    return ("--database", str(place)) if is_named else ()


def _words(query: MonitorQuery) -> Mapping[str, str]:
    fields = {
        "window": query.window if query.window != "24h" else "",
        "by": query.by if query.by != "version" else "",
        "service": query.service,
        "environment": query.environment,
    }
    return {name: value for name, value in fields.items() if value}


@get("/monitor/r/{rollout:str}", include_in_schema=False, sync_to_thread=True)
def show_observed(
    request: PageRequest,
    monitor: NamedDependency[MonitorService | None],
    settings: NamedDependency[DashboardSettings],
    rollout: FromPath[str],
) -> Template:
    """Show one production rollout."""
    # Ids come from agents, and a template quotes them twice.
    rollout = unquote(rollout)
    view = None if monitor is None else observed_view(monitor.reader, rollout)
    if view is None:
        raise NotFoundException("no production rollout has this id")
    cli = ("bench", "monitor", "show", rollout, *_database_words(settings))
    live = LivePage("monitor")
    return render(
        request,
        "observed.html",
        view,
        title=rollout,
        section="monitor",
        cli=cli,
        context={"live": live},
    )


@get("/alerts", include_in_schema=False, sync_to_thread=True)
def show_alerts(
    request: PageRequest,
    monitor: NamedDependency[MonitorService | None],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show open alerts, resolved ones and silences."""
    view = None
    if monitor is not None:
        view = {
            "open": alerts_where(monitor.reader, "resolved IS NULL"),
            "resolved": alerts_where(monitor.reader, "resolved IS NOT NULL", 50),
            "silences": monitor.reader.query(
                "SELECT rule, grp, until, author, reason FROM monitor_silences"
                " WHERE until > ? ORDER BY until",
                (time.time(),),
            ),
            "rules": [rule.name for rule in monitor.rules],
            "check_sec": monitor.config.check_sec,
        }
    cli = ("bench", "monitor", "alerts", *_database_words(settings)) if view else ()
    live = LivePage("monitor", refresh_sec=AGES_SEC) if view else None
    return render(
        request,
        "alerts.html",
        view,
        title="Alerts",
        section="alerts",
        cli=cli,
        context={"live": live},
    )


@post("/alerts/silence", include_in_schema=False, guards=[operator], status_code=303)
async def silence_alert(
    request: PageRequest, monitor: NamedDependency[MonitorService | None]
) -> Redirect:
    """Silence a rule for some hours."""
    form = await checked_form(request)
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
    until, author = time.time() + hours * 3600, user_of(request).name
    access_of(request).audit.record(author, "silence", f"{rule} {group}", "ok")
    await asyncio.to_thread(monitor.reader.silence, rule, group, until, author, reason)
    return Redirect("/alerts", status_code=303)
