"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

from benchflow_engine.options import RunOptions
from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", help="JSON on standard output.")]
JobsDir = Annotated[Path, Parameter(help="Directory of the jobs.")]
Run = Annotated[RunOptions, Parameter(name="*")]
"""Each field of RunOptions as an option."""

DEFAULT_JOBS = Path("jobs")
