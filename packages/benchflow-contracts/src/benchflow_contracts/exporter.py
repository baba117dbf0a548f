"""The exporter, which writes finished rollouts in another format."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from pydantic import Field

from ._model import RareModel
from .events import Event
from .gateway import ModelCall
from .sample import TrainingOptions
from .tree import RolloutNode, RolloutTree


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """The record of a rollout. Do not trust its texts: they come from a sandbox and an agent."""

    tree: RolloutTree
    """Only a root if the rollout could not start; `tree.error` then says why."""
    task_digest: str
    instruction: str
    agent: str
    model: str | None
    sandbox: str
    """The name of the provider."""
    finished_at: float
    """Seconds since the epoch."""
    task_path: Path | None = None
    """The task's directory during the run, if it is known. It may not exist any more."""
    task_format: str = "benchflow"
    """`Task.format`."""
    events: Sequence[Event] = ()
    """The events that `tree` was folded from, with their times."""
    calls: Mapping[str, ModelCall] = field(default_factory=dict[str, ModelCall])
    """The recorded model calls by id."""
    directory: Path | None = None
    """The rollout's own files, such as the verifier's output."""
    job: str | None = None
    """The name of the job that ran the rollout, if one did."""
    store_generation: int | None = None
    """The version of the learner's store that the rollout began with, in a sequential job."""

    @property
    def imported_from(self) -> str | None:
        """The format that the rollout was imported from; `None` if BenchFlow ran the rollout.

        An imported rollout is never on-policy data: an exporter for trainers refuses it without
        `TrainingOptions.imported`.
        """
        found = self.tree.meta.get("imported_from")
        if found is None:
            details = self.tree.meta.get("imported")
            if isinstance(details, Mapping):
                found = cast("Mapping[str, object]", details).get("format")
        return None if found is None else str(found)


class Exported(RareModel):
    """The counts of an export."""

    trajectories: int = Field(ge=0)
    """Root-to-leaf paths that were written."""
    unscored: int = Field(ge=0)
    """Leaves without a reward, whether or not they were written."""
    tampered: int = Field(default=0, ge=0)
    """Of `unscored`: leaves with a verdict that the agent may have steered."""
    counterfactual: int = Field(default=0, ge=0)
    """Scored leaves that were left out: the task's user may never give the answers above them."""
    breaks: int = Field(default=0, ge=0)
    """Model calls whose prompt did not begin with the tokens before it."""
    repeated_tokens: int = Field(default=0, ge=0)
    """Tokens before a break that the prompt after it has again."""
    missing_logprobs: int = Field(default=0, ge=0)
    """Messages of a model that cannot be trained on: they have no log-probabilities."""
    untrainable: int = Field(default=0, ge=0)
    """Scored leaves that a format of tokens left out: they have no token with a log-probability
    and an advantage, or the options mask them."""
    truncated: int = Field(default=0, ge=0)
    """Scored leaves that a limit on tokens or requests ended. The export marks them or leaves them
    out."""
    mixed_versions: int = Field(default=0, ge=0)
    """Scored leaves that several versions of the policy sampled. The export names the versions."""
    mixed_calls: int = Field(default=0, ge=0)
    """Messages whose weights changed while they were sampled. `TrainingOptions.mixed_calls` says
    whether they are trained on."""
    sampling_masks: int = Field(default=0, ge=0)
    """Scored leaves with a `SamplingMask`. A format without a field for masks leaves them out."""


class Exporter(Protocol):
    """Writes a directory. Files for a trainer contain only scored trajectories."""

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write `rollouts` as the job called `job` into `directory`.

        `directory` is a temporary directory, which is empty and is renamed on success. Do not
        store its path in the output. Create only regular files and directories, only below it.
        Equal rollouts must give equal bytes. Read `rollouts` once, one at a time.

        Raises:
            StoreError: The format cannot represent a rollout.
        """
        ...


class LeafWriter(Protocol):
    """An export in progress, which gets each leaf when the leaf has its score."""

    def add(self, rollout: FinishedRollout, leaf: RolloutNode) -> None:
        """Write a scored leaf. What was written is in the files on return.

        `rollout` may still run: its tree grows, and values, credits and other leaves are not
        final. Use only what belongs to `leaf`, and keep no reference to the tree. Each leaf comes
        once.

        Raises:
            StoreError: The format cannot represent the rollout, or a file cannot be written.
        """
        ...

    def finish(self, rollouts: Iterable[FinishedRollout]) -> Exported:
        """Write the rest. `rollouts` are all rollouts of the export, which have ended now.

        A scored leaf that was not added is written now, in the order of the tree. If leaves were
        added in the order of the trees, the files are those of `Exporter.export`.

        Raises:
            StoreError: As for `add`.
        """
        ...


@runtime_checkable
class StreamsLeaves(Protocol):
    """An `Exporter` that writes each leaf on its own, so that a reader can follow the file."""

    def begin(self, job: str, directory: Path) -> LeafWriter:
        """Begin an export into `directory`, as for `Exporter.export`."""
        ...


@dataclass(frozen=True, slots=True)
class _WholeWriter:
    """The leaves of an exporter that needs whole rollouts: nothing is written before the end."""

    exporter: Exporter
    job: str
    directory: Path

    def add(self, rollout: FinishedRollout, leaf: RolloutNode) -> None:
        """Do nothing: `finish` gets the leaf with its rollout."""

    def finish(self, rollouts: Iterable[FinishedRollout]) -> Exported:
        """Export the rollouts."""
        return self.exporter.export(self.job, rollouts, self.directory)


def begin_export(exporter: Exporter, job: str, directory: Path) -> LeafWriter:
    """Begin an export leaf by leaf. An exporter that needs whole rollouts writes at the end."""
    if isinstance(exporter, StreamsLeaves):
        return exporter.begin(job, directory)
    return _WholeWriter(exporter, job, directory)


class Importer(Protocol):
    """Reads trajectories that BenchFlow did not run. Group `benchflow.importers`."""

    def __call__(self, file: Path, /) -> Iterable[FinishedRollout]:
        """Return the rollouts of `file`, each as a tree that has ended.

        `tree.meta["imported_from"]` is the name of the format. Verdicts of the file may be in
        `RolloutNode.results`; a missing verdict is unscored, never 0. A rollout has no
        recorded calls, so it has no log-probabilities. The file is hostile: bound its size.

        Raises:
            StoreError: The file is not of this format, or damaged.
        """
        ...


@runtime_checkable
class TakesTrainingOptions(Protocol):
    """An exporter for trainers that can choose what it exports."""

    def with_options(self, options: TrainingOptions) -> Exporter:
        """Return an exporter of the same format with these options.

        Raises:
            UsageError: The format cannot express an option.
        """
        ...
