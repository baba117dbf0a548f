"""The application: its pages, its guards and its templates."""

import logging
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlencode

from benchflow_contracts import BenchFlowError, UsageError
from jinja2 import Environment, PackageLoader, StrictUndefined
from litestar import Litestar, Request, Response
from litestar.config.compression import CompressionConfig
from litestar.datastructures import State
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.plugins.jinja import JinjaTemplateEngine
from litestar.response import Redirect
from litestar.template import TemplateConfig
from litestar.types import ControllerRouterHandler

from .actions.records import ActionStore
from .api.health import check_health
from .api.metrics import show_metrics
from .api.openapi import openapi_config
from .api.v1 import API_V1
from .assets import asset_url, serve_asset, serve_icon
from .fleet.reader import FleetReader
from .index import Index
from .live.hub import LiveHub
from .live.stream import stream_changes, stream_rollout
from .monitor.ingest import receive_logs, receive_records, receive_traces
from .monitor.service import MonitorService, make_monitor
from .notes.store import NotesStore
from .pages.actions import show_action, show_actions
from .pages.branches import act_on_rollout, confirm_branch
from .pages.compare import show_comparison
from .pages.cost import show_costs
from .pages.diff import show_diff
from .pages.evidence import download_evidence
from .pages.export import export_rows, show_export
from .pages.failures import show_failures
from .pages.fleet import show_fleet
from .pages.format import FILTERS
from .pages.job import show_job, show_jobs
from .pages.job_actions import act_on_job, confirm_job_action
from .pages.login import log_in, log_out, show_login
from .pages.monitor import show_alerts, show_monitor, show_observed, silence_alert
from .pages.notes import edit_label, edit_note
from .pages.oidc import begin_oidc_login, finish_oidc_login
from .pages.page import go_to_runs, render, set_theme, show_help
from .pages.rewards import show_rewards
from .pages.rollout import show_rollout
from .pages.runs import show_runs
from .pages.saved_views import save_view
from .pages.search import show_search
from .rollouts import RolloutCache
from .security.access import AccessControl, access_of, viewer
from .security.headers import add_security_headers
from .security.hosts import FOREIGN, HostGuard
from .security.origin import OriginGuard
from .settings import DashboardSettings
from .stop import StopEvent
from .tree.cache import TreeCache
from .tree.measure import dollars, number, seconds, signed
from .visible_text import visible_text

_logger = logging.getLogger(__name__)

PAGES: Final[tuple[ControllerRouterHandler, ...]] = (
    go_to_runs,
    show_login,
    log_in,
    log_out,
    begin_oidc_login,
    finish_oidc_login,
    set_theme,
    show_help,
    show_runs,
    save_view,
    show_jobs,
    show_job,
    show_comparison,
    show_costs,
    show_rewards,
    show_rollout,
    download_evidence,
    show_search,
    show_failures,
    edit_label,
    edit_note,
    show_export,
    export_rows,
    show_fleet,
    show_monitor,
    show_observed,
    show_alerts,
    silence_alert,
    show_diff,
    show_action,
    show_actions,
    confirm_job_action,
    act_on_job,
    confirm_branch,
    act_on_rollout,
)
"""The route handlers of the pages. A new page adds its line here."""

_MACHINE_PATHS: Final = ("/api/", "/v1/", "/healthz", "/metrics")
"""Errors below these paths, and of streams, are JSON."""

_NOT_COMPRESSED: Final = ("^/static", "/live", "/evidence/")
_GZIP_LEVEL: Final = 5
"""A large tree takes a third of the time of level 9, and a fifth more bytes."""

API: Final[tuple[ControllerRouterHandler, ...]] = (check_health, show_metrics, API_V1)
"""The route handlers for machines."""

STREAMS: Final[tuple[ControllerRouterHandler, ...]] = (stream_changes, stream_rollout)
"""The live streams, which last as long as a browser shows a page."""

INGEST: Final[tuple[ControllerRouterHandler, ...]] = (
    receive_traces,
    receive_logs,
    receive_records,
)
"""The routes that take traces of production agents, by ingest keys."""


def create_app(
    settings: DashboardSettings, *, index: Index | None = None, has_process: bool = False
) -> Litestar:
    """Return the application. With `has_process`, monitor mode folds traces in a child process.

    Raises:
        UsageError: The settings bind a public address without authentication, or the index is
            inside the jobs directory.
    """
    settings.check_bind()
    notes = NotesStore(settings.notes_path())
    the_index = index or _open_index(settings)
    rollouts, trees = RolloutCache(), TreeCache()
    stop, access = StopEvent(), AccessControl.of(settings)
    hosts = HostGuard((*settings.allowed_hosts, settings.host))
    monitor = make_monitor(settings, has_process=has_process)
    live = _make_live(the_index, monitor, stop)
    injected = {
        "settings": settings,
        "index": the_index,
        "fleet": FleetReader(the_index.live_jobs),
        "notes": notes,
        "actions": ActionStore(settings.actions_path()),
        "rollouts": rollouts,
        "monitor": monitor,
        "trees": trees,
        "stop": stop,
        "live": live,
    }
    return Litestar(
        route_handlers=[serve_asset, serve_icon, *PAGES, *API, *STREAMS, *INGEST],
        guards=[viewer],
        middleware=[hosts, OriginGuard()],
        before_send=[add_security_headers],
        exception_handlers={HTTPException: show_error, BenchFlowError: show_fault},
        template_config=_templates(),
        compression_config=CompressionConfig(
            backend="gzip", gzip_compress_level=_GZIP_LEVEL, exclude=[*_NOT_COMPRESSED]
        ),
        dependencies={name: _constant(value) for name, value in injected.items()},
        state=State({**injected, "access": access, "hosts": hosts}),
        before_request=note_versions,
        lifespan=[
            lambda _: live.running(),
            *([] if monitor is None else [lambda _: monitor.running()]),
        ],
        on_startup=[the_index.watcher.start],
        on_shutdown=[the_index.close, access.close],
        openapi_config=openapi_config(),
        logging_config=None,
    )


def _constant(value: object) -> Provide:
    return Provide(lambda: value, sync_to_thread=False)


async def note_versions(request: Request[Any, Any, Any]) -> None:
    """Note the state of each topic before a page reads its data."""
    request.state["live_versions"] = request.app.state["live"].versions()


def _templates() -> TemplateConfig[JinjaTemplateEngine]:
    engine = JinjaTemplateEngine.from_environment(template_environment())
    return TemplateConfig(instance=engine)


def show_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[Any]:
    """Return an error as a page, or as JSON below `/api/`."""
    path = request.url.path
    if not request.app.state["hosts"].allows(request.scope):
        # Litestar refuses unknown paths before the guard runs, and a page has the token of forms.
        return Response({"status": 421, "detail": FOREIGN}, status_code=421)
    if path.startswith(_MACHINE_PATHS) or path.endswith("/live"):
        body = {"status": error.status_code, "detail": error.detail}
        return Response(body, status_code=error.status_code, headers=error.headers)
    if error.status_code == 401 and request.method == "GET":
        here = path + (f"?{query}" if (query := request.url.query) else "")
        return Redirect(f"/login?{urlencode({'next': here})}")
    page = render(request, "error.html", error, title=f"Error {error.status_code}")
    page.status_code = error.status_code
    page.headers.update(error.headers or {})
    return page


def show_fault(request: Request[Any, Any, Any], error: BenchFlowError) -> Response[Any]:
    """Return an error of BenchFlow: wrong input as status 400, anything else as 503."""
    status = 400 if isinstance(error, UsageError) else 503
    if status == 503 and access_of(request).user(request) is None:
        # The message may name hosts, users of a database and paths.
        _logger.warning("%s %s: %s", request.method, request.url.path, error)
        return show_error(request, HTTPException("the server is not ready", status_code=503))
    hint = f" Hint: {error.hint}." if error.hint else ""
    return show_error(request, HTTPException(f"{error}.{hint}", status_code=status))


def _open_index(settings: DashboardSettings) -> Index:
    path, notes = settings.index_path(), settings.notes_path()
    return Index(path, settings.jobs_dir, notes, settings.database_url)


def _make_live(index: Index, monitor: MonitorService | None, stop: StopEvent) -> LiveHub:
    """Return the hub, which hears of each change of the index and of monitor mode."""
    live = LiveHub(lambda name: _directory_of(index, name), stop)
    index.watcher.on_change(lambda: live.notify("runs"))
    if monitor is not None:
        monitor.assembler.on_change = lambda: live.notify("monitor")
    return live


def _directory_of(index: Index, name: str) -> Path | None:
    """Return the directory of the newest rollout with the id `name`."""
    found = [entry for entry in index.find(name) if entry.id == name]
    return found[0].directory if found else None


def template_environment() -> Environment:
    """Return the templates: with autoescape, filters, and visible control characters."""
    # StrictUndefined: a template that names a missing value fails its test, and shows no blank.
    environment = Environment(
        loader=PackageLoader("benchflow_dashboard", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_show,
    )
    environment.filters.update(FILTERS)
    environment.globals["asset_url"] = cast("Any", asset_url)
    environment.filters.update(
        {
            "tree_number": number,
            "tree_signed": signed,
            "tree_dollars": dollars,
            "tree_seconds": seconds,
        }
    )
    return environment


def _show(value: object) -> object:
    """Make control characters visible in each text that a template prints."""
    return visible_text(value) if type(value) is str else value
