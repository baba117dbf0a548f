"""Labelled rollouts as a dataset: one JSON line for each leaf, also without a reward."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchflow_contracts import Exported, FinishedRollout
from benchflow_export import leaf_record, write_json_lines

from benchflow_dashboard.notes.queries import Annotations

LABELLED: Final = "labelled"
"""The name of the format."""


@dataclass(frozen=True, slots=True)
class LabelledExporter:
    """Writes the leaves of rollouts that have a label or a note.

    A row is one of the format `verifiers`, with `info.labels` and `info.notes`: those of the
    rollout, and those of the nodes on the path to the leaf.
    """

    annotations: Callable[[str], Annotations]
    """Returns the labels and notes of a rollout."""

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the rows; see `Exporter`."""
        del job
        written = unscored = 0

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal written, unscored
            for rollout in rollouts:
                for row in self._rows(rollout):
                    written += 1
                    unscored += row["reward"] is None
                    yield row

        write_json_lines(rows(), directory / f"{LABELLED}.jsonl")
        return Exported(trajectories=written, unscored=unscored)

    def _rows(self, rollout: FinishedRollout) -> Iterator[dict[str, Any]]:
        found = self.annotations(rollout.tree.rollout_id)
        if not found.labels and not found.notes:
            return
        for leaf in rollout.tree.leaves:
            path = {"", *(node.id for node in leaf.path)}
            row = leaf_record(rollout, leaf)
            row["info"]["labels"] = [asdict(each) for each in found.labels if each.node in path]
            row["info"]["notes"] = [asdict(each) for each in found.notes if each.node in path]
            yield row
