"""An exporter of a format that renders samples with tokens, one group of trees at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    AdvantageEstimator,
    Exported,
    FinishedRollout,
    Sample,
    SharedPrefix,
    TrainingOptions,
    UsageError,
)

from .rows import write_json_lines
from .selection import ChosenSamples, groups_of
from .sequences import Rendering

Group = Sequence[Sequence[Sample]]
"""The chosen samples of one `SampleGroup`, by tree."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file, and the samples that it has tokens of."""

    record: dict[str, Any]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class SampleExporter:
    """Writes one file of JSON lines: what `render` makes of each group.

    Left out are unscored leaves, leaves without a token to train on, and those that the options
    exclude: by default truncated leaves, and leaves below answers that the task's user may never
    give. The returns of truncated leaves count in our advantages, because the policy got them.
    """

    file_name: str
    render: Callable[[Group, Rendering], Iterator[Line]]
    estimators: tuple[AdvantageEstimator, ...]
    """The advantages that the format can express; the first one is the default."""
    shared_prefixes: tuple[SharedPrefix, ...] = ("per_leaf", "once")
    """The first one is the default."""
    options: TrainingOptions = field(default_factory=TrainingOptions)

    def with_options(self, options: TrainingOptions) -> "SampleExporter":
        """Return the exporter with other options; see `TakesTrainingOptions`."""
        if options.advantage not in (None, *self.estimators):
            raise UsageError(
                f"{self.file_name} cannot express the advantage {options.advantage!r}",
                hint=f"choose --advantage {' or '.join(self.estimators)}",
            )
        if options.shared_prefix not in (None, *self.shared_prefixes):
            raise UsageError(
                f"{self.file_name} cannot share prefixes {options.shared_prefix!r}",
                hint=f"choose --shared-prefix {' or '.join(self.shared_prefixes)}",
            )
        return replace(self, options=options)

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the file; see `Exporter`.

        Raises:
            StoreError: `require_tokens` is set, and a sample has a break or lacks tokens.
        """
        del job
        rendering = Rendering(
            estimator=self.options.advantage or self.estimators[0],
            shared_prefix=self.options.shared_prefix or self.shared_prefixes[0],
        )
        chosen = ChosenSamples(self.options)
        groups = groups_of(chosen.of(rollouts), directory / ".samples.part")
        records = self._records(groups, chosen, rendering)
        write_json_lines(records, directory / self.file_name, is_compact=True)
        return chosen.counts()

    def _records(
        self, groups: Iterable[Group], chosen: ChosenSamples, rendering: Rendering
    ) -> Iterator[dict[str, Any]]:
        for group in groups:
            written: dict[tuple[str, str], Sample] = {}
            trees = [[s for s in tree if not self._is_masked(s)] for tree in group]
            for line in self.render([tree for tree in trees if tree], rendering):
                written |= {(each.tree, each.leaf): each for each in line.samples}
                yield line.record
            chosen.count_written(written.values())
            everyone = (sample for tree in group for sample in tree)
            chosen.count_untrainable(s for s in everyone if (s.tree, s.leaf) not in written)

    def _is_masked(self, sample: Sample) -> bool:
        is_mixed = len(sample.policy_versions) > 1
        return (sample.is_truncated and self.options.truncated == "mask") or (
            is_mixed and self.options.mixed_versions == "mask"
        )
