"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from benchflow_engine.flags import RunFlags
from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", help="JSON on standard output.")]
JobsDir = Annotated[Path, Parameter(help="Directory of the jobs.")]
Run = Annotated[RunFlags, Parameter(name="*")]
"""Each flag of a rollout."""

DEFAULT_JOBS = Path("jobs")
