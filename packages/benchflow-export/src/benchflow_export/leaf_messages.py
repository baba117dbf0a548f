"""One line for each scored leaf, written when the leaf has its score: chat messages and reward."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import (
    Exported,
    FinishedRollout,
    RolloutNode,
    StoreError,
    TrainingOptions,
    UsageError,
)

from .imported import refuse_imported
from .rows import is_tampered
from .trainer import is_chosen, leaf_record

FILE: Final = "messages.jsonl"
_LINES: Final = json.JSONEncoder(allow_nan=False)


@dataclass(frozen=True, slots=True)
class MessagesExporter:
    """Writes what is final when a leaf has its score, so that the file can be followed.

    A line has the messages of OpenAI's Chat Completions, the reward and its parts. Advantages are
    not in it: they need the other leaves.
    """

    options: TrainingOptions = field(default_factory=TrainingOptions)

    def with_options(self, options: TrainingOptions) -> "MessagesExporter":
        """Return the exporter with other options; see `TakesTrainingOptions`."""
        allowed = TrainingOptions(counterfactual=options.counterfactual, imported=options.imported)
        if options != allowed:
            raise UsageError(
                f"{FILE} takes only --counterfactual and --imported",
                hint="choose a format with tokens or advantages, such as v1-leaves or verifiers",
            )
        return replace(self, options=options)

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the lines; see `Exporter`."""
        return self.begin(job, directory).finish(rollouts)

    def begin(self, job: str, directory: Path) -> "MessagesWriter":
        """Begin an export leaf by leaf; see `StreamsLeaves`."""
        del job
        return MessagesWriter(directory / FILE, self.options)


class MessagesWriter:
    """A `LeafWriter`: in memory are only the names of the leaves that were written."""

    def __init__(self, path: Path, options: TrainingOptions) -> None:
        self._path = path
        self._options = options
        self._written: set[tuple[str, str]] = set()
        self._chosen = self._counterfactual = self._truncated = self._mixed = 0
        try:
            path.touch()
        except OSError as error:
            raise StoreError(f"cannot export to {str(path)!r}: {error}") from error

    def add(self, rollout: FinishedRollout, leaf: RolloutNode) -> None:
        """Write the line of a scored leaf; a leaf without a reward is counted at the end."""
        for checked in refuse_imported([rollout], self._options):
            key = checked.tree.rollout_id, leaf.id
            if leaf.reward is None or key in self._written:
                return
            self._written.add(key)
            record = leaf_record(checked, leaf, tool_calls="openai")
            if not is_chosen(record, self._options):
                self._counterfactual += 1
                return
            self._chosen += 1
            self._truncated += bool(record["is_truncated"])
            self._mixed += len(record["info"]["policy_versions"]) > 1
            self._write(_line(record))

    def finish(self, rollouts: Iterable[FinishedRollout]) -> Exported:
        """Write the leaves that were not added, and count the others."""
        unscored = tampered = 0
        for rollout in rollouts:
            for leaf in rollout.tree.leaves:
                self.add(rollout, leaf)
                unscored += leaf.reward is None
                tampered += is_tampered(leaf)
        return Exported(
            trajectories=self._chosen,
            unscored=unscored,
            tampered=tampered,
            counterfactual=self._counterfactual,
            truncated=self._truncated,
            mixed_versions=self._mixed,
        )

    def _write(self, line: dict[str, Any]) -> None:
        try:
            data = _LINES.encode(line).encode() + b"\n"
            with self._path.open("ab", buffering=0) as file:
                file.write(data)
        except (OSError, ValueError, TypeError) as error:
            raise StoreError(f"cannot export to {str(self._path)!r}: {error}") from error


def leaf_messages() -> MessagesExporter:
    """Chat messages and the reward, one line per scored leaf, written as the leaf is scored."""
    return MessagesExporter()


def _line(record: dict[str, Any]) -> dict[str, Any]:
    info = record["info"]
    return {
        "task_id": info["task_id"],
        "rollout_id": info["rollout_id"],
        "leaf": info["leaf"],
        "branch": info["branch"],
        "model": info["model"],
        "messages": [*record["prompt"], *record["completion"]],
        "reward": record["reward"],
        "metrics": record["metrics"],
        "answer": info["answer"],
        "answer_weight": info["answer_weight"],
        "integrity": info["reward_metadata"]["integrity"],
        "is_truncated": record["is_truncated"],
        "stop_condition": record["stop_condition"],
        "policy_versions": info["policy_versions"],
        **({"imported_from": info["imported_from"]} if "imported_from" in info else {}),
    }
