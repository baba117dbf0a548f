"""What a bundle has, and its limits."""

from pathlib import Path

from benchflow_contracts import Model
from pydantic import Field


class BundleOptions(Model):
    """The selection and the limits of a bundle."""

    jobs: tuple[str, ...] = ()
    """Names of jobs. Without a job and a rollout, all of the directory is selected."""
    rollouts: tuple[str, ...] = ()
    """Ids of rollouts, or unique starts of ids."""
    limit: int = Field(default=50, ge=1, le=10_000)
    """The maximum number of rollouts, the newest ones first."""
    pages: int = Field(default=400, ge=1, le=100_000)
    """The maximum number of pages of one rollout, and of the lists together."""
    max_mb: int = Field(default=256, ge=1)
    """The size after which only the first page of a rollout is added."""
    redact_env: tuple[str, ...] = ()
    """Names of further variables whose values are secret."""
    force: bool = False
    """Whether an earlier bundle in the same place is replaced."""


class BundleReport(Model):
    """What a bundle has."""

    directory: Path
    rollouts: int
    left_out: int
    """Selected rollouts beyond the limit."""
    pages: int
    omitted_pages: int
    """Pages that were found and are beyond a limit."""
    bytes: int
    redacted: int
    """The files of the record in which a secret was masked."""
