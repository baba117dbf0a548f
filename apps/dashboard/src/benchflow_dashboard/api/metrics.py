"""`/metrics`: the counters of the index for Prometheus."""

import time

from litestar import Response, get
from litestar.di import NamedDependency

from benchflow_dashboard.index import Index, RunQuery, read_totals
from benchflow_dashboard.security.access import limited


@get("/metrics", guards=[limited], include_in_schema=False, sync_to_thread=True)
def show_metrics(index: NamedDependency[Index]) -> Response[str]:
    """Return counters in the text format of Prometheus."""
    with index.read() as session:
        totals = read_totals(session, RunQuery())
    watcher = index.watcher
    age = 0.0 if watcher.updated is None else time.time() - watcher.updated
    lines = [
        "# HELP benchflow_rollouts Rollouts that stand for their slot, by status.",
        "# TYPE benchflow_rollouts gauge",
        *(
            f'benchflow_rollouts{{status="{_label(status)}"}} {count}'
            for status, count in sorted(totals.by_status.items())
        ),
        "# HELP benchflow_unscored_rollouts Rollouts that ended without a score, by boundary.",
        "# TYPE benchflow_unscored_rollouts gauge",
        *(
            f'benchflow_unscored_rollouts{{boundary="{_label(boundary)}"}} {count}'
            for boundary, count in sorted(totals.by_boundary.items())
        ),
        "# HELP benchflow_index_age_seconds Seconds since the last whole pass over the jobs.",
        "# TYPE benchflow_index_age_seconds gauge",
        f"benchflow_index_age_seconds {age:.3f}",
        "# HELP benchflow_index_up Whether the index follows the jobs directory.",
        "# TYPE benchflow_index_up gauge",
        f"benchflow_index_up {int(watcher.problem is None)}",
    ]
    return Response("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4")


def _label(value: str) -> str:
    # A boundary comes from a file of a run.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
