"""The sandboxes of this machine, what ended runs left, and the queues: `/fleet`."""

import shlex
import time
from typing import Any, Final

from litestar import get
from litestar.di import NamedDependency
from litestar.response import Template
from pydantic_core import to_jsonable_python

from benchflow_dashboard.fleet.reader import FleetReader, FleetView
from benchflow_dashboard.index import Index
from benchflow_dashboard.index.queries import read_run
from benchflow_dashboard.settings import DashboardSettings

from .page import REPORT_REST_SEC, LivePage, PageRequest, jobs_dir_words, render

_REFRESH_SEC: Final = 5
IDENTITY: Final = ("scope", "slot", "attempt", "rollout", "node")


def fleet_json(view: FleetView) -> dict[str, Any]:
    """Return the view as JSON. A sandbox is as `bench sandbox list --json` prints it."""
    now = time.time()
    found: dict[str, Any] = to_jsonable_python(view)
    for shown, provider in zip(found["providers"], view.providers, strict=True):
        for record, line in zip(provider.records, shown["state"]["value"] or (), strict=True):
            line["overdue"] = record.overdue(now)
    return found


@get("/fleet", include_in_schema=False, sync_to_thread=True)
def show_fleet(
    request: PageRequest,
    fleet: NamedDependency[FleetReader],
    index: NamedDependency[Index],
    settings: NamedDependency[DashboardSettings],
) -> Template:
    """Show the fleet. A source that does not answer in time is shown as last known."""
    words, view = jobs_dir_words(settings), fleet.view()
    records = [record for each in view.providers for record in each.records]
    rollouts = {record.identity.rollout for record in records} - {None}
    # A sandbox may belong to a run in another directory, which has no page here.
    with index.read() as session:
        known = {name for name in rollouts if name and read_run(session, name)}
    return render(
        request,
        "fleet.html",
        view,
        title="Fleet",
        section="fleet",
        cli=("bench", "dashboard", "fleet", *words),
        context={
            # No topic reports a sandbox: the page reads itself.
            "live": LivePage("runs", refresh_sec=_REFRESH_SEC, rest_sec=REPORT_REST_SEC),
            "now": time.time(),
            "identity": IDENTITY,
            "known": known,
            "job_option": shlex.join(words),
        },
    )
