"""The exporter: writes finished rollouts in somebody else's format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pydantic import Field

from ._model import Model
from .events import Event
from .gateway import ModelCall
from .tree import RolloutTree


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """What a rollout left. Its texts are a sandbox's and an agent's: hostile."""

    tree: RolloutTree
    """With a root alone when the rollout could not begin; then `tree.error` says why."""
    task_digest: str
    instruction: str
    agent: str
    model: str | None
    sandbox: str
    """The name of the provider."""
    finished_at: float
    """Seconds since the epoch."""
    task_path: Path | None = None
    """Where the task lay when it was run, if that is known; it may be gone since."""
    task_format: str = "benchflow"
    """`Task.format`."""
    events: Sequence[Event] = ()
    """The log that `tree` was folded from; it holds the times."""
    calls: Mapping[str, ModelCall] = field(default_factory=dict[str, ModelCall])
    """The recorded model calls by id."""
    directory: Path | None = None
    """The rollout's own files, such as the verifier's output."""


class Exported(Model):
    """What an export holds."""

    trajectories: int = Field(ge=0)
    """Root-to-leaf paths that were written."""
    unscored: int = Field(ge=0)
    """Leaves without a reward, whether they were written or left out."""
    tampered: int = Field(default=0, ge=0)
    """Of `unscored`: leaves with a verdict that the agent may have steered."""


class Exporter(Protocol):
    """Writes a directory. What it writes for a trainer has no unscored trajectory in it."""

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write `rollouts` as the job called `job` into `directory`.

        `directory` exists and is empty, and gets its name when this returns: a reader never
        sees half of it, and its path must not be written down. Only regular files and
        directories are made, and only below it. The same rollouts give the same bytes.
        `rollouts` is read once, one at a time.

        Raises:
            StoreError: The format cannot hold what a rollout left.
        """
        ...
