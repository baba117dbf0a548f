"""`bench dashboard cost` and `rewards`: what the pages of the same names show."""

from pathlib import Path
from typing import Any

from . import format as fmt
from .dashboard import dashboard_package
from .flags import DEFAULT_JOBS, JobsDir, Json
from .output import note, print_json, print_table

_UNKNOWN = "-"


def cost(
    query: str = "",
    *,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """Show cost and tokens by job, variant, task or model, also per success.

    Unknown numbers are `-` and `null`, never 0. The index is brought up to date first, unless a
    dashboard runs and does it.

    Examples:
        bench dashboard cost
        bench dashboard cost 'job=nightly'
        bench dashboard cost 'job=nightly&by=task&min=0.5' --json

    Args:
        query: Query string of the page `/cost`: `job`, `by`, `min`, `sort`.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.list_costs(settings, query)
    if json:
        print_json(view)
        return
    columns = (
        *(view["by"], "rollouts", "successes", "cost USD", "USD per success", "tokens in"),
        *("tokens out", "unknown cost", "unknown tokens"),
    )
    rows = [_cost_row(group) for group in view["groups"]]
    print_table(columns, rows, empty=f"no rollouts below {jobs_dir}")
    total = view["total"]
    note(
        f"all: {_dollars(total['cost'])} USD, {total['successes']} of {total['rollouts']} succeeded"
    )
    if view["next"] is not None:
        note(f"{len(rows)} of {view['matching']} groups; the next page is after={view['next']}")


def rewards(
    query: str = "",
    *,
    jobs_dir: JobsDir = DEFAULT_JOBS,
    index: Path | None = None,
    json: Json = False,
) -> None:
    """Show rewards by space and granularity, for the variants of a job or for all jobs.

    Each rollout that has ended counts once, by the mean of its signals. Unscored verdicts are
    counted, and are in no mean. With --json also by step.

    Examples:
        bench dashboard rewards
        bench dashboard rewards 'job=nightly&space=action' --json

    Args:
        query: Query string of the page `/rewards`: `job`, `space`.
        index: File of the index (default: a file in the user's cache directory).
    """
    dashboard = dashboard_package()
    settings = dashboard.DashboardSettings(jobs_dir=jobs_dir, index=index)
    view = dashboard.list_rewards(settings, query)
    if json:
        print_json(view)
        return
    columns = ("space", "granularity", "group", "mean", "deviation", "rollouts", "unscored")
    rows = [
        (
            *(row["space"], row["granularity"], group or _UNKNOWN),
            *(fmt.reward(found["mean"]), fmt.reward(found["deviation"])),
            *(found["rollouts"], found["unscored"]),
        )
        for row in view["rows"]
        for group, found in row["cells"].items()
    ]
    print_table(columns, rows, empty=f"no verdicts below {jobs_dir}")


def _cost_row(group: dict[str, Any]) -> tuple[str, ...]:
    counts = (group["rollouts"], group["successes"])
    tokens = (_known(group["tokens_in"]), _known(group["tokens_out"]))
    costs = (_dollars(group["cost"]), _dollars(group["cost_per_success"]))
    unknown = (group["unknown_cost"], group["unknown_tokens"])
    name = group["name"] or _UNKNOWN
    return (name, *map(str, counts), *costs, *tokens, *map(str, unknown))


def _known(number: int | None) -> str:
    return _UNKNOWN if number is None else str(number)


def _dollars(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.4f}"
