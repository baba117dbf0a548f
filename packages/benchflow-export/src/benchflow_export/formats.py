"""The trainer formats as exporters. Each is an entry point of `benchflow.exporters`."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    AdvantageEstimator,
    Exported,
    FinishedRollout,
    TrainingOptions,
    UsageError,
)

from .episodes import DEFAULT_ESTIMATOR, SHARED_PREFIX, Shape, episode
from .imported import refuse_imported
from .rows import ToolCallFormat, export_trajectories_to_jsonl, write_json_lines
from .selection import ChosenSamples, Tree, with_inter
from .trainer import is_chosen, leaf_record, with_inter_advantage


@dataclass(frozen=True, slots=True)
class RowExporter:
    """Writes one JSON line per scored leaf, with its advantages.

    The rows of one group are those of a task, a job and the same first weights: each row has
    `info.advantage.inter` when the group has rollouts of several trees.
    """

    file_name: str
    tool_calls: ToolCallFormat
    convert: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    """Makes the line of a row with its advantages."""
    options: TrainingOptions = field(default_factory=TrainingOptions)

    def with_options(self, options: TrainingOptions) -> "RowExporter":
        """Return the exporter with other options; see `TakesTrainingOptions`."""
        if options.require_tokens:
            raise UsageError(
                f"{self.file_name} has no tokens",
                hint="choose a format with tokens, such as v1-leaves, or drop --require-tokens",
            )
        if options.shared_prefix is not None:
            raise UsageError(f"{self.file_name} has no tokens", hint="drop --shared-prefix")
        _refuse_masks(options, self.file_name)
        if options.advantage is not None:
            raise UsageError(
                f"{self.file_name} has every advantage in info.advantage",
                hint="drop --advantage, or choose a v1 format",
            )
        return replace(self, options=options)

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the rows; see `Exporter`."""
        del job
        part = directory / f".{self.file_name}.part"
        counts: Counter[str] = Counter()

        def records() -> Iterator[dict[str, Any]]:
            for rollout in refuse_imported(rollouts, self.options):
                for leaf in rollout.tree.leaves:
                    record = leaf_record(rollout, leaf, tool_calls=self.tool_calls)
                    if record["reward"] is None:
                        yield record
                    elif is_chosen(record, self.options):
                        counts["truncated"] += record["is_truncated"]
                        counts["mixed_versions"] += len(record["info"]["policy_versions"]) > 1
                        yield record
                    else:
                        counts["counterfactual"] += 1

        report = export_trajectories_to_jsonl(records(), part)
        # The advantage over a group is known only after its last row.
        rows = with_inter_advantage(lambda: _read_lines(part))
        write_json_lines(map(self.convert, rows), directory / self.file_name)
        part.unlink()
        return Exported(
            trajectories=report.written,
            unscored=report.unscored,
            tampered=report.tampered,
            **counts,
        )


@dataclass(frozen=True, slots=True)
class EpisodeExporter:
    """Writes one JSON line per rollout: a Verifiers v1 episode.

    Left out are unscored leaves and, without `TrainingOptions.counterfactual`, leaves below
    answers that the task's user may never give.
    """

    shape: Shape
    is_flat: bool = False
    """Write one JSON line per trace, without the episode."""
    options: TrainingOptions = field(default_factory=TrainingOptions)

    def with_options(self, options: TrainingOptions) -> "EpisodeExporter":
        """Return the exporter with other options; see `TakesTrainingOptions`."""
        _refuse_masks(options, f"v1-{self.shape}")
        if options.shared_prefix not in (None, SHARED_PREFIX[self.shape]):
            raise UsageError(
                f"v1-{self.shape} shares prefixes {SHARED_PREFIX[self.shape]!r},"
                f" not {options.shared_prefix!r}",
                hint="choose v1-graph for once, v1-leaves or v1-flat for per_leaf",
            )
        return replace(self, options=options)

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the episodes or their traces; see `Exporter`.

        Raises:
            StoreError: `require_tokens` is set, and a sample has a break or lacks tokens.
        """
        del job
        chosen = ChosenSamples(self.options)
        estimator = self.options.advantage or DEFAULT_ESTIMATOR[self.shape]
        trees = chosen.of(rollouts)
        if "inter" in estimator:
            trees = with_inter(trees, directory / ".samples.part")
        lines = self._lines(trees, chosen, estimator)
        write_json_lines(lines, directory / "traces.jsonl", is_compact=True)
        return chosen.counts()

    def _lines(
        self, trees: Iterable[Tree], chosen: ChosenSamples, estimator: AdvantageEstimator
    ) -> Iterator[dict[str, Any]]:
        for samples, calls in trees:
            chosen.count_written(samples)
            record = episode(samples, calls, self.shape, estimator)
            if record is not None:
                yield from record["traces"] if self.is_flat else [record]


def _refuse_masks(options: TrainingOptions, name: str) -> None:
    if options.mixed_versions == "mask":
        raise UsageError(
            f"{name} names the versions of each trajectory and leaves none out",
            hint="drop --mixed-versions, and choose by the versions in the export",
        )


def verifiers_rows() -> RowExporter:
    """Verifiers rows (up to 0.3.1), one line per scored leaf."""
    return RowExporter("verifiers.jsonl", "verifiers")


def sft_rows() -> RowExporter:
    """Verifiers rows with OpenAI tool calls, for an SFT reader."""
    return RowExporter("sft.jsonl", "openai")


def v1_leaves() -> EpisodeExporter:
    """Verifiers v1 episodes with recorded token ids, one trace per scored leaf."""
    return EpisodeExporter("leaves")


def v1_graph() -> EpisodeExporter:
    """Verifiers v1 episodes with recorded token ids, one trace per tree."""
    return EpisodeExporter("graph")


def v1_flat() -> EpisodeExporter:
    """Verifiers v1 traces with recorded token ids, one line per scored leaf."""
    return EpisodeExporter("leaves", is_flat=True)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)
