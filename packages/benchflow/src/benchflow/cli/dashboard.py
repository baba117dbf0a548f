"""`bench dashboard`: runs, rollout trees and rewards in the browser."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from benchflow_contracts import UsageError
from cyclopts import Parameter
from cyclopts.validators import Number

from . import format as fmt
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table

if TYPE_CHECKING:
    from types import ModuleType

    from benchflow_dashboard import DashboardSettings


def serve(
    *,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    host: str = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8642,
    no_open: bool = False,
    index: Path | None = None,
    users: Path | None = None,
    https: bool = False,
    config: Path | None = None,
) -> None:
    """Serve the dashboard of a directory of jobs, also while jobs run.

    The dashboard never writes into the directory of the jobs.

    Examples:
        bench dashboard serve
        bench dashboard --jobs-dir /data/jobs --port 0 --no-open
        bench dashboard --host 0.0.0.0 --users users.toml --https

    Args:
        host: Address to listen on. An address other than the loopback needs authentication.
        port: Port; 0 takes a free one.
        no_open: Do not open a browser.
        index: File of the index (default: a file in the user's cache directory).
        users: File of users, made by `bench dashboard user`. Each request then needs a login.
        https: Browsers reach the server by HTTPS, through a proxy; cookies are secure.
        config: TOML file with any field of `DashboardSettings`. A flag goes before the file.
    """
    dashboard = dashboard_package()
    flags = {
        "jobs_dir": jobs_dir,
        "host": host,
        "port": port,
        "index": index,
        "users": users,
        "https": https,
    }
    settings = dashboard.read_settings(config, flags)

    open_dashboard(dashboard, settings, no_open=no_open)


def open_dashboard(
    dashboard: "ModuleType", settings: "DashboardSettings", *, no_open: bool
) -> None:
    """Serve until Ctrl-C, print the URL, and open a browser."""

    def show(url: str) -> None:
        note(f"dashboard of {settings.jobs_dir}: {url}")
        note("stop with Ctrl-C")
        if not no_open:
            webbrowser.open(url)

    dashboard.serve(settings, on_ready=show)


def runs(
    query: str = "",
    *,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """List a page of runs, as the dashboard shows it.

    The index is brought up to date first, unless a dashboard runs and does it.

    Examples:
        bench dashboard runs
        bench dashboard runs 'job=nightly&status=unscored&sort=reward' --json

    Args:
        query: Query string of the page `/runs`.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.list_runs(settings, query)
    if json:
        print_json(view)
        return
    rows = [
        (
            run["id"],
            run["task"],
            run["status"],
            fmt.reward(run["reward"]),
            run["scored"],
            run["steps"],
            run["reason"] or "",
        )
        for run in view["runs"]
    ]
    columns = ("rollout", "task", "status", "reward", "scored", "steps", "reason")
    print_table(columns, rows, empty=f"no rollouts below {jobs_dir}")
    totals = view["totals"]
    note(f"{len(rows)} of {totals['n']}, {totals['failed']} failed")


def search(
    words: str,
    *,
    job: str = "",
    task: str = "",
    status: str = "",
    after: str = "",
    before: str = "",
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """Search the steps of all rollouts, the best match first.

    Of very many matches, the newest 20,000 are ranked.

    Examples:
        bench dashboard search '"design review" tuesday'
        bench dashboard search timeout --job nightly --status failed --json

    Args:
        words: Words, and phrases in double quotes. A step matches if it has all of them.
        job: Job of the rollouts (default: any).
        task: Task of the rollouts (default: any).
        status: Status of the rollouts (default: any).
        after: Place after which the page begins: `next` of the page before.
        before: Place before which the page ends: `previous` of the page after.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.list_steps(
        settings, q=words, job=job, task=task, status=status, after=after, before=before
    )
    if json:
        print_json(view)
        return
    rows = [
        (hit["run"], hit["node"], hit["status"], "".join(part["text"] for part in hit["snippet"]))
        for hit in view["hits"]
    ]
    print_table(("rollout", "node", "status", "text"), rows, empty="no step has all words")
    newest = "the newest " if view["is_cut"] else ""
    note(f"{len(rows)} of {newest}{view['ranked']} matches")


def failures(
    query: str = "",
    *,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """List the causes of rollouts without a score, the most frequent first.

    Numbers and ids in the first line of an error do not make another cause.

    Examples:
        bench dashboard failures
        bench dashboard failures 'job=nightly&boundary=agent' --json

    Args:
        query: Query string of the page `/failures`.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.list_failures(settings, query)
    if json:
        print_json(view)
        return
    rows = [
        (
            group["runs"],
            group["tasks"],
            group["boundary"] or "no rewards",
            group["error_type"] or "-",
            group["fingerprint"] or "-",
            group["run"],
            group["example"],
        )
        for group in view["groups"]
    ]
    columns = ("runs", "tasks", "boundary", "error", "fp", "newest", "example")
    print_table(columns, rows, empty="no rollout failed")
    note(f"{view['failed']} failed, {view['unfinished']} unfinished")


def export(
    query: str = "",
    *,
    output: Path,
    format: str = "verifiers",  # noqa: A002 - the flag's name
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """Export the runs of a query as rows for a trainer, from any jobs.

    Runs that have not ended, and runs without files here, have no rows. The format `labelled` has
    each leaf of the rollouts with labels or notes, also without a score.

    Examples:
        bench dashboard export 'job=nightly&status=completed' --output rows.jsonl
        bench dashboard export 'label=good' --format labelled --output dataset.jsonl
        bench dashboard export 'id=book-the-room__1f&id=book-the-room__2c' --output two.jsonl

    Args:
        query: Query string of the page `/runs`, or `id=ROLLOUT` repeated.
        output: File or directory of the export. An earlier export is replaced.
        format: Format of the export: `labelled`, or one of `bench rollout formats`.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    counts = dashboard.export_runs(settings, query, format, output)
    if json:
        print_json({"path": str(output), **counts})
        return
    note(f"wrote {counts['trajectories']} trajectories to {output}, {counts['unscored']} unscored")


def fleet(
    *,
    wait: float = 10.0,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """Show the sandboxes of all providers, what ended runs left, and the queue of each job.

    Nothing is deleted; `bench sandbox prune` does that.

    Examples:
        bench dashboard fleet
        bench dashboard fleet --wait 2 --json

    Args:
        wait: Seconds to wait for the providers.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.read_fleet(settings, wait)
    if json:
        print_json(view)
        return
    owners = {True: "active", False: "ended", None: "unknown"}
    rows: list[tuple[str, ...]] = []
    for each in view["providers"]:
        rows += [
            (each["provider"], record["id"], owners[record["owner_alive"]])
            for record in each["state"]["value"] or ()
        ]
    print_table(("provider", "sandbox", "owner"), rows, empty="no sandboxes")
    sources = {each["provider"]: each["state"] for each in view["providers"]}
    for name, state in {
        **sources,
        "directories": view["directories"],
        "jobs": view["queues"],
    }.items():
        if state["problem"] or state["waits_since"]:
            note(f"{name}: {state['problem'] or 'no answer in time'}")
    note(f"{len(view['directories']['value'] or ())} directories of ended runs")
    for queue in view["queues"]["value"] or ():
        queued = sum(each["is_queued"] for each in queue["running"])
        counts = f"{len(queue['running']) - queued} running, {queued} queued"
        note(f"job {queue['job']}: {counts}, {queue['waiting']} waiting")


def notes(
    rollout: str,
    *,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """Show the labels and notes that users wrote on a rollout in the dashboard.

    Examples:
        bench dashboard notes book-the-room__1f
        bench dashboard runs 'label=wrong+tool'

    Args:
        rollout: Rollout: its id.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.list_annotations(settings, rollout)
    if json:
        print_json(view)
        return
    rows = [
        (each["node"] or "-", "label", each["label"], each["author"]) for each in view["labels"]
    ]
    rows += [(each["node"] or "-", "note", each["text"], each["author"]) for each in view["notes"]]
    print_table(("node", "kind", "text", "author"), rows, empty=f"no labels and notes on {rollout}")


def user(
    name: str,
    *,
    role: Literal["viewer", "operator", "admin"] = "viewer",
    users: Path = Path("users.toml"),
) -> None:
    """Add a user to a file, and print the user's token once.

    Examples:
        bench dashboard user ana
        bench dashboard user ben --role operator --users /etc/benchflow/users.toml

    Args:
        name: Name of the user.
        role: `viewer` reads, `operator` also acts on jobs and alerts, `admin` does all.
        users: File of users.
    """
    dashboard_package()
    from benchflow_dashboard.security.users import add_user

    print(add_user(users, name, role))  # noqa: T201 - the token is the result
    note(f"added {name!r} to {users}; start `bench dashboard --users {users}`")


def reindex(*, jobs_dir: JobsDir = DEFAULT_JOBS, index: Path | None = None) -> None:
    """Build the index of the dashboard anew. The index can be deleted at any time.

    Examples:
        bench dashboard reindex

    Args:
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    path = settings.index_path()
    note(f"{dashboard.reindex(path, jobs_dir)} rollouts in {path}")


def dashboard_package() -> "ModuleType":
    """Return the module of the dashboard.

    Raises:
        UsageError: The package is not installed.
    """
    try:
        import benchflow_dashboard
    except ModuleNotFoundError as error:
        raise UsageError(
            f"the dashboard is not installed: {error}",
            hint="install it: pip install 'benchflow[dashboard]'",
        ) from error
    return benchflow_dashboard
