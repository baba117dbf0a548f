"""The samples that an export has, the counts of the others, and the groups that they form."""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    Exported,
    FinishedRollout,
    ModelCall,
    Sample,
    StoreError,
    TrainingOptions,
)

from .advantages import GroupReturns, add_inter, with_group_advantages
from .imported import refuse_imported
from .rows import is_tampered
from .samples import samples_of

Tree = tuple[list[Sample], Mapping[str, ModelCall]]
"""The chosen samples of one rollout, and its calls."""


class ChosenSamples:
    """Chooses the samples that are exported, and counts the others."""

    def __init__(self, options: TrainingOptions) -> None:
        self._options = options
        self._counts: Counter[str] = Counter()

    def of(self, rollouts: Iterable[FinishedRollout]) -> Iterator[Tree]:
        """Yield the samples of one rollout after the other."""
        for rollout in refuse_imported(rollouts, self._options):
            missing = [leaf for leaf in rollout.tree.leaves if leaf.reward is None]
            self._counts["unscored"] += len(missing)
            self._counts["tampered"] += sum(map(is_tampered, missing))
            samples = [sample.with_options(self._options) for sample in samples_of(rollout)]
            chosen = [s for s in samples if s.answer == "user" or self._options.counterfactual]
            self._counts["counterfactual"] += len(samples) - len(chosen)
            for sample in chosen:
                self._refuse_inexact(sample)
            yield chosen, rollout.calls

    def _refuse_inexact(self, sample: Sample) -> None:
        faults = sample.breaks or sample.missing_logprobs
        if self._options.require_tokens and (faults or not sample.spans):
            raise StoreError(
                f"leaf {sample.leaf!r} of rollout {sample.tree!r} is not exact:"
                f" {sample.breaks} breaks of the token sequence and"
                f" {sample.missing_logprobs} model messages without log-probabilities",
                hint="record the calls behind --upstream vllm, use a chat template that keeps"
                " its prefix, or drop --require-tokens",
            )

    def count_written(self, samples: Iterable[Sample]) -> None:
        """Count samples that are in the export."""
        for sample in samples:
            self._counts["trajectories"] += 1
            self._counts["breaks"] += sample.breaks
            self._counts["repeated_tokens"] += sample.repeated_tokens
            self._counts["missing_logprobs"] += sample.missing_logprobs
            self._count_marks(sample)

    def count_untrainable(self, samples: Iterable[Sample]) -> None:
        """Count samples that the export leaves out because no token may be trained on."""
        for sample in samples:
            self._counts["untrainable"] += 1
            self._counts["missing_logprobs"] += sample.missing_logprobs
            self._count_marks(sample)

    def _count_marks(self, sample: Sample) -> None:
        self._counts["truncated"] += sample.is_truncated
        self._counts["mixed_versions"] += len(sample.policy_versions) > 1
        self._counts["mixed_calls"] += sample.mixed_calls
        self._counts["sampling_masks"] += sample.has_sampling_masks

    def counts(self) -> Exported:
        """Return the counts so far."""
        return Exported(**{"trajectories": 0, "unscored": 0, **self._counts})


def with_inter(trees: Iterable[Tree], spool: Path) -> Iterator[Tree]:
    """Yield the trees with the `inter` advantage of each sample, over all trees of its group.

    The samples wait in the file `spool`, because the returns of a group are known only after its
    last tree.
    """
    returns = GroupReturns()
    with spool.open("w", encoding="utf-8") as file:
        for samples, calls in trees:
            for sample in samples:
                returns.add(sample)
            file.write(_to_line(samples, calls))
    inter = returns.advantages()
    with spool.open(encoding="utf-8") as file:
        for line in file:
            samples, calls = _from_line(line)
            yield [add_inter(each, inter) for each in samples], calls
    spool.unlink()


def groups_of(trees: Iterable[Tree], spool: Path) -> Iterator[list[list[Sample]]]:
    """Yield the samples of one group after the other, by tree, with their `inter` advantages.

    The groups are in the order of their first trees. The samples wait in the file `spool`, and one
    group at a time is in memory.
    """
    places: dict[str, list[int]] = {}
    with spool.open("wb") as file:
        for samples, _ in trees:
            if samples:
                places.setdefault(samples[0].group.id, []).append(file.tell())
                file.write(_to_line(samples, {}).encode())
    with spool.open("rb") as file:
        for offsets in places.values():
            group: list[Sample] = []
            for offset in offsets:
                file.seek(offset)
                group += _from_line(file.readline())[0]
            by_tree = itertools.groupby(with_group_advantages(group), key=lambda s: s.tree)
            yield [list(tree) for _, tree in by_tree]
    spool.unlink()


def _to_line(samples: Sequence[Sample], calls: Mapping[str, ModelCall]) -> str:
    used = {span.call for sample in samples for span in sample.spans}
    record = {
        "samples": [sample.model_dump(mode="json") for sample in samples],
        "calls": [calls[key].model_dump(mode="json") for key in calls if key in used],
    }
    return json.dumps(record) + "\n"


def _from_line(line: str | bytes) -> Tree:
    record: dict[str, list[Any]] = json.loads(line)
    calls = [ModelCall.model_validate(each) for each in record["calls"]]
    samples = [Sample.model_validate(each) for each in record["samples"]]
    return samples, {call.id: call for call in calls}
