"""What the pages and the commands of monitor mode show."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from benchflow_store import StepLine, step_lines
from benchflow_traces import ObservedRollout, observed_rollouts

from .alerts import ALERT_COLUMNS, Alert, alert_of
from .charts import Chart, RewardRow, charts, reward_rows
from .metrics import Group, Selection
from .reader import MonitorReader

WINDOWS: Final[Mapping[str, float]] = {
    "1h": 3600,
    "6h": 6 * 3600,
    "24h": 86_400,
    "7d": 7 * 86_400,
    "30d": 30 * 86_400,
}
GROUPS: Final[tuple[Group, ...]] = ("version", "environment", "service", "")
PAGE: Final = 50
_QUICK_SEC: Final = 0.05
_MAX_VIEWS: Final = 64
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


def monitor_view(reader: MonitorReader, query: MonitorQuery, now: float) -> MonitorView:
    """Return what the page shows. The command line prints the same."""
    selection = query.selection(now)
    facets = _facets(reader, selection)
    rollouts: dict[str, int] = {}
    for facet in facets:
        if facet.is_closed and facet.is_of(query):
            group = getattr(facet, query.by) if query.by else ""
            rollouts[group] = rollouts.get(group, 0) + facet.n
    shown = dict(sorted(rollouts.items())) or ({} if query.by else {"": 0})
    has_evals = reader.has_evals
    return MonitorView(
        query=query,
        closed=sum(rollouts.values()),
        running=sum(facet.n for facet in facets if not facet.is_closed),
        unknown_spans=sum(facet.unknown_spans for facet in facets),
        services=tuple(sorted({facet.service for facet in facets if facet.is_closed})),
        environments=tuple(sorted({facet.environment for facet in facets if facet.is_closed})),
        groups=tuple(shown),
        charts=charts(reader, selection, query.by, has_evals=has_evals),
        rewards=reward_rows(reader, selection, query.by, shown, has_evals=has_evals),
        alerts=alerts_where(reader, "resolved IS NULL"),
        rollouts=rollout_lines(reader, query, selection),
    )


@dataclass(frozen=True, slots=True)
class _KeptView:
    """A view, the time until which it is new enough, and the time until which it is shown."""

    view: MonitorView
    fresh_until: float
    shown_until: float


class MonitorViews:
    """Views that several readers of a page share while one of them is costly to make.

    A view that took T seconds is used for `20 T`, so that open pages take at most a twentieth of a
    processor. For another `20 T`, readers get it while a thread makes the next one: a view of many
    rollouts takes seconds, and no reader should wait for it. A view that is made quickly is made
    each time.
    """

    def __init__(self, reader: MonitorReader, clock: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._clock = clock
        self._lock = threading.Lock()
        self._making = threading.Lock()
        """Only one view is made at a time."""
        self._views: dict[MonitorQuery, _KeptView] = {}
        self._renewed: set[MonitorQuery] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="monitor-views")

    def view(self, query: MonitorQuery) -> MonitorView:
        """Return the view of a query, made now or a short time ago."""
        with self._lock:
            now = self._clock()
            kept = self._views.get(query)
            if kept is not None and now < kept.shown_until:
                if now >= kept.fresh_until and query not in self._renewed:
                    self._renewed.add(query)
                    self._thread.submit(self._renew, query)
                return kept.view
        return self._make(query)

    def close(self) -> None:
        """Wait for the view that is made. Idempotent."""
        self._thread.shutdown(cancel_futures=True)

    def _renew(self, query: MonitorQuery) -> None:
        try:
            self._make(query)
        finally:
            with self._lock:
                self._renewed.discard(query)

    def _make(self, query: MonitorQuery) -> MonitorView:
        with self._making:
            with self._lock:
                now = self._clock()
                kept = self._views.get(query)
                if kept is not None and now < kept.fresh_until:
                    # Another reader made it while this one waited.
                    return kept.view
            began = time.perf_counter()
            view = monitor_view(self._reader, query, now)
            use = 20 * (time.perf_counter() - began)
        with self._lock:
            self._views = {one: v for one, v in self._views.items() if v.shown_until > now}
            self._views.pop(query, None)
            if use > 20 * _QUICK_SEC and len(self._views) < _MAX_VIEWS:
                self._views[query] = _KeptView(view, now + use, now + 2 * use)
        return view


@dataclass(frozen=True, slots=True)
class _Facet:
    """The rollouts of one program in a window."""

    service: str
    version: str
    environment: str
    is_closed: bool
    n: int
    unknown_spans: int

    def is_of(self, query: MonitorQuery) -> bool:
        is_service = not query.service or self.service == query.service
        return is_service and (not query.environment or self.environment == query.environment)


def _facets(reader: MonitorReader, selection: Selection) -> list[_Facet]:
    """Return the programs of a window, in one pass over its rollouts."""
    rows = reader.query(
        "SELECT service, version, environment, closed, COUNT(*), SUM(unknown_spans)"
        " FROM monitor_rollouts WHERE ended >= ? AND ended < ?"
        " GROUP BY service, version, environment, closed",
        (selection.since, selection.until),
    )
    return [
        _Facet(service, version, environment, bool(closed), n, unknown)
        for service, version, environment, closed, n, unknown in rows
    ]


def rollout_lines(
    reader: MonitorReader, query: MonitorQuery, selection: Selection
) -> tuple[Mapping[str, Any], ...]:
    """Return the newest rollouts of a selection."""
    sql = f"SELECT {ROLLOUT_COLUMNS} FROM monitor_rollouts WHERE ended >= ? AND ended < ?"  # noqa: S608
    values: list[object] = [selection.since, selection.until]
    for name in ("service", "environment"):
        if chosen := getattr(query, name):
            sql += f" AND {name} = ?"
            values.append(chosen)
    rows = reader.query(f"{sql} ORDER BY ended DESC, id LIMIT ?", (*values, PAGE))
    return tuple(rollout_line(row) for row in rows)


def rollout_line(row: tuple[Any, ...]) -> Mapping[str, Any]:
    """Return a row with its names."""
    return dict(zip(ROLLOUT_COLUMNS.replace(" ", "").split(","), row, strict=True))


def alerts_where(reader: MonitorReader, condition: str, limit: int = 200) -> tuple[Alert, ...]:
    """Return alerts, the newest first. `condition` is a constant of the caller."""
    sql = f"SELECT {ALERT_COLUMNS} FROM monitor_alerts WHERE {condition}"  # noqa: S608
    rows = reader.query(f"{sql} ORDER BY opened DESC, id LIMIT ?", (limit,))
    return tuple(alert_of(row) for row in rows)


@dataclass(frozen=True, slots=True)
class ObservedView:
    """One production rollout with its steps and rewards."""

    line: Mapping[str, Any]
    steps: tuple[tuple[str, str, tuple[StepLine, ...]], ...]
    """The id, the role and the lines of each step."""
    rewards: tuple[tuple[Any, ...], ...]
    """Source, space, granularity, step, value and error of each."""


def observed_view(reader: MonitorReader, rollout_id: str) -> ObservedView | None:
    """Return a production rollout, or None if its id is unknown.

    Its steps are empty if its spans were deleted by age.
    """
    sql = f"SELECT {ROLLOUT_COLUMNS} FROM monitor_rollouts WHERE id = ?"  # noqa: S608
    rows = reader.query(sql, (rollout_id,))
    if not rows:
        return None
    rollout = load_rollout(reader, rollout_id)
    rewards = reader.query(
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


def load_rollout(reader: MonitorReader, rollout_id: str) -> ObservedRollout | None:
    """Fold a stored rollout again from its spans."""
    spans, logs, _ = reader.conversation_of(rollout_id)
    return next((r for r in observed_rollouts(spans, logs) if r.id == rollout_id), None)
