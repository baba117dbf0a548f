"""Flags that several commands share."""

from pathlib import Path
from typing import Annotated

from benchflow_engine.options import RunOptions
from cyclopts import Parameter

Json = Annotated[bool, Parameter(name="--json", help="Print JSON on standard output.")]
JobsDir = Annotated[Path, Parameter(help="Where jobs are kept.")]
Run = Annotated[RunOptions, Parameter(name="*")]
"""Every field of RunOptions as a flag of its own."""

DEFAULT_JOBS = Path("jobs")
