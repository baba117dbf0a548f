"""Options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", help="JSON on standard output.")]
Progress = Annotated[
    Literal["auto", "json"],
    Parameter(
        help="Form of the progress on standard error: a table on a terminal and lines elsewhere, "
        "or one JSON object for each event, also with --json or --quiet."
    ),
]
Quiet = Annotated[bool, Parameter(help="No progress on standard error.")]
MaxCost = Annotated[
    float | None,
    Parameter(
        help="US dollars for sandboxes and model calls, above which no rollout starts "
        "(default: no limit). A model needs --usd-per-mtok."
    ),
]
JobsDir = Annotated[Path, Parameter(help="Directory of the jobs.")]

DEFAULT_JOBS = Path("jobs")
