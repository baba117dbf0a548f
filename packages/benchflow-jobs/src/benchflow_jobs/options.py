"""JobOptions: the rollouts of a job."""

import re
from pathlib import Path
from typing import Annotated

from benchflow_contracts import Model
from benchflow_engine.config import RunConfig
from pydantic import AfterValidator, Field

from .orders import MAX_REPLICATIONS

_MAX_NAME_BYTES = 200
"""A file system has names of at most 255 bytes, and the names of exports have a suffix."""


def _one_name(name: str) -> str:
    if re.fullmatch(r"\w[\w.@-]*", name) is None:
        raise ValueError("it is not one name of letters, digits, '_', '.', '@' and '-'")
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise ValueError(f"it is longer than {_MAX_NAME_BYTES} bytes")
    return name


JobName = Annotated[str, AfterValidator(_one_name)]
"""The name of a job's directory, not a path."""


class JobOptions(Model):
    """A job of tasks x repeats with one configuration: the short form of a `JobConfig`."""

    tasks_dir: str | Path
    """A task, a directory of tasks, the URL of a git repository or a registry.json."""
    dataset: str | None = None
    """Of a registry.json: `NAME` or `NAME@VERSION`."""
    run: RunConfig = RunConfig()
    """The configuration of each rollout."""
    jobs_dir: Path = Path("jobs")
    job_name: JobName | None = None
    """The name of the job's directory below `jobs_dir`, not a path."""
    repeats: int = Field(default=1, ge=1, le=MAX_REPLICATIONS)
    concurrency: int = Field(default=4, ge=1)
    retries: int = Field(default=2, ge=0, le=3)
    """More tries of a rollout whose sandbox failed in a way that passes, such as an engine that
    was restarted, in its run or its grading. The evidence of each try is kept; the last counts."""
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Most US dollars for sandboxes and model calls (default: no limit); see `[budget]`."""
    include: tuple[str, ...] = ()
    """Globs over task ids; empty takes all."""
    exclude: tuple[str, ...] = ()
    max_tasks: int | None = Field(default=None, ge=1)
    """Maximum number of tasks (default: all that can run here). The first ones are taken."""
