"""The trainer formats as exporters. Each is an entry point of `benchflow.exporters`."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    AdvantageEstimator,
    Exported,
    FinishedRollout,
    ModelCall,
    Sample,
    StoreError,
    TrainingOptions,
    UsageError,
)

from .advantages import GroupReturns, add_inter
from .episode import DEFAULT_ESTIMATOR, Shape, episode
from .rows import ToolCallFormat, export_trajectories_to_jsonl, is_tampered, write_json_lines
from .samples import samples_of
from .trainer import is_chosen, leaf_record, with_inter_advantage


@dataclass(frozen=True, slots=True)
class RowExporter:
    """Writes one JSON line per scored leaf, with its advantages.

    The rows of one group are those of a task, a job and the same first weights: each row has
    `info.advantage.inter` when the group has rollouts of several trees.
    """

    file_name: str
    tool_calls: ToolCallFormat
    options: TrainingOptions = field(default_factory=TrainingOptions)

    def with_options(self, options: TrainingOptions) -> "RowExporter":
        """Return the exporter with other options; see `TakesTrainingOptions`."""
        if options.require_tokens:
            raise UsageError(
                f"{self.file_name} has no tokens",
                hint="choose a format with tokens, such as v1-leaves, or drop --require-tokens",
            )
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
        counterfactual = 0

        def records() -> Iterator[dict[str, Any]]:
            nonlocal counterfactual
            for rollout in rollouts:
                for leaf in rollout.tree.leaves:
                    record = leaf_record(rollout, leaf, tool_calls=self.tool_calls)
                    if record["reward"] is None or is_chosen(record, self.options):
                        yield record
                    else:
                        counterfactual += 1

        report = export_trajectories_to_jsonl(records(), part)
        # The advantage over a group is known only after its last row.
        rows = with_inter_advantage(lambda: _read_lines(part))
        write_json_lines(rows, directory / self.file_name)
        part.unlink()
        return Exported(
            trajectories=report.written,
            unscored=report.unscored,
            tampered=report.tampered,
            counterfactual=counterfactual,
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
        return replace(self, options=options)

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the episodes or their traces; see `Exporter`.

        Raises:
            StoreError: `require_tokens` is set, and a sample has a break or lacks tokens.
        """
        del job
        chosen = _ChosenSamples(self.options)
        estimator = self.options.advantage or DEFAULT_ESTIMATOR[self.shape]
        trees = chosen.of(rollouts)
        if "inter" in estimator:
            spool = directory / ".samples.part"
            trees = _with_inter(trees, spool)
        lines = self._lines(trees, estimator)
        write_json_lines(lines, directory / "traces.jsonl")
        return chosen.counts()

    def _lines(
        self, trees: "Iterable[_Tree]", estimator: AdvantageEstimator
    ) -> Iterator[dict[str, Any]]:
        for samples, calls in trees:
            record = episode(samples, calls, self.shape, estimator)
            if record is not None:
                yield from record["traces"] if self.is_flat else [record]


_Tree = tuple[list[Sample], Mapping[str, ModelCall]]
"""The chosen samples of one rollout, and its calls."""


class _ChosenSamples:
    """Chooses the samples that are exported, and counts the others."""

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self._counts: Counter[str] = Counter()

    def of(self, rollouts: Iterable[FinishedRollout]) -> Iterator[_Tree]:
        """Yield the samples of one rollout after the other."""
        for rollout in rollouts:
            missing = [leaf for leaf in rollout.tree.leaves if leaf.reward is None]
            self._counts["unscored"] += len(missing)
            self._counts["tampered"] += sum(map(is_tampered, missing))
            samples = samples_of(rollout)
            chosen = [s for s in samples if s.answer == "user" or self._options.counterfactual]
            self._counts["counterfactual"] += len(samples) - len(chosen)
            self._count_tokens(chosen)
            yield chosen, rollout.calls

    def _count_tokens(self, samples: list[Sample]) -> None:
        self._counts["trajectories"] += len(samples)
        for sample in samples:
            faults = sample.breaks or sample.missing_logprobs
            if self._options.require_tokens and (faults or not sample.spans):
                raise StoreError(
                    f"leaf {sample.leaf!r} of rollout {sample.tree!r} is not exact:"
                    f" {sample.breaks} breaks of the token sequence and"
                    f" {sample.missing_logprobs} model messages without log-probabilities",
                    hint="record the calls behind --upstream vllm, use a chat template that keeps"
                    " its prefix, or drop --require-tokens",
                )
            self._counts["breaks"] += sample.breaks
            self._counts["repeated_tokens"] += sample.repeated_tokens
            self._counts["missing_logprobs"] += sample.missing_logprobs

    def counts(self) -> Exported:
        """Return the counts so far."""
        names = ("trajectories", "unscored", "tampered", "counterfactual")
        token_names = ("breaks", "repeated_tokens", "missing_logprobs")
        return Exported(**{name: self._counts[name] for name in (*names, *token_names)})


def _with_inter(trees: Iterable[_Tree], spool: Path) -> Iterator[_Tree]:
    """Yield the trees with the `inter` advantage of each sample, over all trees of its group.

    The samples wait in the file `spool`, because the returns of a group are known only after its
    last tree.
    """
    returns = GroupReturns()
    with spool.open("w", encoding="utf-8") as file:
        for samples, calls in trees:
            for sample in samples:
                returns.add(sample)
            used = {span.call for sample in samples for span in sample.spans}
            record = {
                "samples": [sample.model_dump(mode="json") for sample in samples],
                "calls": [calls[key].model_dump(mode="json") for key in calls if key in used],
            }
            file.write(json.dumps(record) + "\n")
    inter = returns.advantages()
    for record in _read_lines(spool):
        samples = [Sample.model_validate(each) for each in record["samples"]]
        recorded = [ModelCall.model_validate(each) for each in record["calls"]]
        yield [add_inter(each, inter) for each in samples], {call.id: call for call in recorded}
    spool.unlink()


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
