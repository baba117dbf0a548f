"""Flags that several commands share."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchflow.options import RunOptions

Json = Annotated[bool, Parameter(name="--json", help="Print JSON on standard output.")]
JobsDir = Annotated[Path, Parameter(help="Where jobs are kept.")]
Run = Annotated[RunOptions, Parameter(name="*")]
"""Every field of RunOptions as a flag of its own."""

DEFAULT_JOBS = Path("jobs")
