"""`bench monitor`: traces of production agents, scored by the rewards of an eval."""

import asyncio
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from benchflow_contracts import UsageError
from cyclopts import Parameter
from cyclopts.validators import Number

from . import format as fmt
from .dashboard import open_dashboard
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Generator

    from benchflow_dashboard.monitor.metrics import Sample
    from benchflow_dashboard.monitor.reader import MonitorReader

Window = Literal["1h", "6h", "24h", "7d", "30d"]
By = Literal["version", "environment", "service", ""]
Database = Annotated[str | None, Parameter(name="--database")]


def run(
    *,
    rules: Path | None = None,
    database: Database = None,
    keys: Path | None = None,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8642,
    no_open: bool = False,
    users: Path | None = None,
    https: bool = False,
    config: Path | None = None,
) -> None:
    """Serve the dashboard with monitor mode: take traces, score and chart them, and alert.

    Agents report to `/v1/traces` and `/v1/logs` (OTLP over HTTP), or by `benchflow-monitor`.

    Examples:
        bench monitor run
        bench monitor run --rules monitor.toml --keys keys.toml
        bench monitor run --database postgresql://user@host/monitor

    Args:
        rules: File with rewards, prices, alerts and a webhook (default: `monitor.toml`, if it
            exists).
        database: File or URL of a Postgres database (default: a file in the user's data
            directory).
        keys: File of ingest keys. Without it, every program on this machine may report.
        host: Address to listen on. An address other than the loopback needs authentication.
        port: Port; 0 takes a free one.
        no_open: Do not open a browser.
        users: File of users, made by `bench dashboard user`. Each request then needs a login.
        https: Browsers reach the server by HTTPS, through a proxy; cookies are secure.
        config: TOML file with any field of `DashboardSettings`. A flag goes before the file.
    """
    package = _package()
    path = rules or (Path("monitor.toml") if Path("monitor.toml").exists() else None)
    flags = {
        "jobs_dir": jobs_dir,
        "host": host,
        "port": port,
        "monitor": None if database is None else _location(database),
        "monitor_config": path,
        "ingest_keys": keys,
        "users": users,
        "https": https,
    }
    settings = package.read_settings(config, flags)
    if settings.monitor is None:
        settings = settings.model_copy(update={"monitor": _location(None)})
    note(f"traces are stored in {settings.monitor}")
    open_dashboard(package, settings, no_open=no_open)


def show(
    rollout: str | None = None,
    *,
    window: Window = "24h",
    by: By = "version",
    service: str = "",
    environment: str = "",
    database: Database = None,
    json: Json = False,
) -> None:
    """Show the metrics and rewards of production, or one rollout.

    Examples:
        bench monitor show
        bench monitor show --window 7d --by environment --json
        bench monitor show conversation-17

    Args:
        rollout: Id of a rollout (default: all of the window).
        window: Time up to now.
        by: What is compared.
        service: Only this service.
        environment: Only this environment.
        database: File or URL of the database.
    """
    with _reader(database) as reader:
        if rollout is not None:
            _show_rollout(reader, rollout, is_json=json)
            return
        from benchflow_dashboard.monitor.views import MonitorQuery, monitor_view

        query = MonitorQuery(window, by, service, environment)
        view = monitor_view(reader, query, time.time())
    if json:
        print_json(asdict(view))
        return
    note(f"{view.closed} rollouts, {view.running} running")
    rows = [
        (
            *(chart.title, line.group or "all", f"{line.whole.mean:.3g}", line.whole.n),
            *_eval_cells(line.eval.whole if line.eval else None),
        )
        for chart in view.charts
        for line in chart.lines
    ]
    rows += [
        (
            *(f"{row.space}: {row.source}", group or "all"),
            *((f"{cell.mean:.3g}", cell.n) if cell.n else ("-", 0)),
            *_eval_cells(row.evals.get(group)),
        )
        for row in view.rewards
        for group, cell in row.cells.items()
        if cell.n or group in row.evals
    ]
    columns = ("metric", by or "group", "mean", "n", "eval", "n of eval")
    print_table(columns, rows, empty="no rollout has ended in this window")
    for alert in view.alerts:
        note(f"alert {alert.rule}{f' ({alert.group})' if alert.group else ''}: {alert.message}")


def _eval_cells(sample: "Sample | None") -> tuple[str, int | str]:
    return ("-", "-") if sample is None else (f"{sample.mean:.3g}", sample.n)


def alerts(*, all: bool = False, database: Database = None, json: Json = False) -> None:  # noqa: A002
    """List open alerts.

    Examples:
        bench monitor alerts
        bench monitor alerts --all --json

    Args:
        all: List resolved alerts, too.
        database: File or URL of the database.
    """
    with _reader(database) as reader:
        from benchflow_dashboard.monitor.views import alerts_where

        found = alerts_where(reader, "1 = 1" if all else "resolved IS NULL")
    if json:
        print_json([asdict(alert) for alert in found])
        return
    rows = [
        (one.rule, one.group or "all", "open" if one.resolved is None else "resolved", one.message)
        for one in found
    ]
    print_table(("alert", "group", "state", "what"), rows, empty="no alert is open")


def watch(*, database: Database = None, json: Json = False, interval: float = 2.0) -> None:
    """Print each rollout that ends and each alert, until Ctrl-C.

    Examples:
        bench monitor watch
        bench monitor watch --json

    Args:
        database: File or URL of the database.
        interval: Seconds between two looks.
    """
    since = time.time()
    shown: set[str] = set()
    with _reader(database) as reader:
        note("waiting for rollouts that end; stop with Ctrl-C")
        while True:
            for line in _news(reader, since, shown):
                if json:
                    print_json(line, is_line=True)
                else:
                    print(" ".join(str(value) for value in line.values()), flush=True)  # noqa: T201
            time.sleep(interval)


def replay(*paths: Path, rules: Path | None = None, json: Json = False) -> None:
    """Score recorded traces without a server: try rewards before they run in production.

    A file has one OTLP request in JSON on each line, or is one request in protobuf.

    Examples:
        bench monitor replay traces.jsonl
        bench monitor replay traces.jsonl --rules monitor.toml --json

    Args:
        paths: Files with recorded requests.
        rules: File with the rewards (default: `monitor.toml`, if it exists).
    """
    _package()
    from benchflow_dashboard.monitor.config import MonitorConfig, read_monitor_config
    from benchflow_dashboard.monitor.replay import replay as run_replay

    if not paths:
        raise UsageError("name a file with traces", hint="bench monitor replay traces.jsonl")
    path = rules or (Path("monitor.toml") if Path("monitor.toml").exists() else None)
    settings = MonitorConfig() if path is None else read_monitor_config(path)
    results = asyncio.run(run_replay(paths, settings))
    lines: list[dict[str, Any]] = [
        {
            "rollout": rollout.id,
            "service": rollout.service,
            "version": rollout.version,
            "status": rollout.tree.status,
            "steps": len(rollout.steps),
            "unknown_spans": rollout.unknown_spans,
            "rewards": {score.source: score.verdict.reward for score in scores},
            "unscored": {
                score.source: score.verdict.error
                for score in scores
                if score.verdict.reward is None
            },
        }
        for rollout, scores in results
    ]
    if json:
        print_json(lines)
        return
    columns = ("rollout", "service", "version", "status", "steps", "rewards")
    rows = [
        (
            *(line[name] for name in columns[:-1]),
            ", ".join(f"{name} {fmt.reward(value)}" for name, value in line["rewards"].items()),
        )
        for line in lines
    ]
    print_table(columns, rows, empty="these files have no spans")


def key(name: str, *, keys: Path = Path("keys.toml"), spans_per_sec: float | None = None) -> None:
    """Make an ingest key and add its digest to a file. The key is printed once.

    Examples:
        bench monitor key shop-agent
        bench monitor key shop-agent --spans-per-sec 500 --keys /etc/benchflow/keys.toml

    Args:
        name: Name of the program that gets the key.
        keys: File of ingest keys.
        spans_per_sec: Quota (default: none).
    """
    _package()
    from benchflow_dashboard.monitor.keys import add_key

    print(add_key(keys, name, spans_per_sec))  # noqa: T201 - the key is the result
    note(f"added {name!r} to {keys}; restart `bench monitor run --keys {keys}`")


def export(
    rollout: str,
    *,
    reward: str | None = None,
    task: Path | None = None,
    output: Path | None = None,
    database: Database = None,
) -> None:
    """Write a production rollout as a row for a trainer, or as the beginning of a task.

    Examples:
        bench monitor export conversation-17
        bench monitor export conversation-17 --reward judge --output rows.jsonl
        bench monitor export conversation-17 --task tasks/parcel

    Args:
        rollout: Id of a rollout.
        reward: Source of the row's reward (default: the only one; else the row is unscored).
        task: New directory of a task with the user's first prompt; its tests are yours to write.
        output: File to which the row is appended (default: standard output).
        database: File or URL of the database.
    """
    with _reader(database) as reader:
        from benchflow_dashboard.monitor.dataset import dataset_row, write_production_task

        if task is not None:
            names = write_production_task(reader, rollout, task)
            note(f"wrote {', '.join(names)} in {task}")
            note(f"write its tests and artifacts, then run: bench tasks check {task}")
            return
        row = dataset_row(reader, rollout, reward)
    if output is None:
        print_json(row, is_line=True)
        return
    import json as encoder

    with output.open("a") as file:
        file.write(encoder.dumps(row) + "\n")
    note(f"appended {rollout} to {output}")


def _show_rollout(reader: "MonitorReader", rollout: str, *, is_json: bool) -> None:
    from benchflow_dashboard.monitor.views import observed_view

    view = observed_view(reader, rollout)
    if view is None:
        raise UsageError(f"no production rollout has the id {rollout!r}")
    if is_json:
        print_json(
            {
                **view.line,
                "steps_detail": [
                    {"id": name, "role": role, "lines": [line.model_dump() for line in lines]}
                    for name, role, lines in view.steps
                ],
                "rewards": view.rewards,
            }
        )
        return
    line = view.line
    note(f"{line['service']} {line['version']}: {line['status']}, {line['steps']} steps")
    texts = [
        (role, each.kind, each.status or "", each.text)
        for _, role, lines in view.steps
        for each in lines
    ]
    print_table(("role", "what", "status", "text"), texts, empty="no steps")
    rows = [(s, space, step, fmt.reward(v), why) for s, space, _, step, v, why in view.rewards]
    print_table(("reward", "space", "step", "value", "why"), rows, empty="no reward")


def _news(reader: "MonitorReader", since: float, shown: set[str]) -> list[dict[str, Any]]:
    from benchflow_dashboard.monitor.views import alerts_where

    sql = "SELECT id, service, version, status, steps, error, updated FROM monitor_rollouts"
    rows = reader.query(f"{sql} WHERE closed = 1 AND updated >= ? ORDER BY updated", (since,))
    names = ("rollout", "service", "version", "status", "steps", "error")
    lines: list[dict[str, Any]] = []
    for row in rows:
        if (name := f"{row[0]}:{row[-1]}") not in shown:
            shown.add(name)
            lines.append(dict(zip(names, row, strict=False)))
    for alert in alerts_where(reader, "1 = 1", 20):
        state = "opened" if alert.resolved is None else "resolved"
        moment = alert.opened if alert.resolved is None else alert.resolved
        if moment >= since and (name := f"{alert.id}:{state}") not in shown:
            shown.add(name)
            fields = {"alert": alert.rule, "group": alert.group, "state": state}
            lines.append({**fields, "message": alert.message})
    return lines


@contextmanager
def _reader(database: str | None) -> "Generator[MonitorReader]":
    _package()
    from benchflow_dashboard.monitor.database import MonitorDatabase
    from benchflow_dashboard.monitor.reader import MonitorReader

    location = _location(database)
    if isinstance(location, Path) and not location.exists():
        raise UsageError(
            f"no monitor database at {str(location)!r}",
            hint="start `bench monitor run`, or name the database with --database",
        )
    reader = MonitorReader(MonitorDatabase(location, "read"))
    try:
        yield reader
    finally:
        reader.close()


def _location(database: str | None) -> Path | str:
    from benchflow_dashboard.monitor.reader import default_database

    if database is None:
        return default_database()
    return database if "://" in database else Path(database)


def _package() -> Any:  # noqa: ANN401
    from .dashboard import dashboard_package

    return dashboard_package()
