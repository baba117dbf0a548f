"""The trainer formats as exporters. Each is an entry point of `benchflow.exporters`."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_contracts import Exported, FinishedRollout

from .episode import Shape, episode
from .rows import ToolCallFormat, export_trajectories_to_jsonl, is_tampered, write_json_lines
from .trainer import leaf_record, with_inter_advantage


@dataclass(frozen=True, slots=True)
class RowExporter:
    """Writes one JSON line per scored leaf, with its advantages.

    The rows of one task are one group: each row has `info.advantage.inter` when the task has
    rollouts of several trees.
    """

    file_name: str
    tool_calls: ToolCallFormat

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the rows; see `Exporter`."""
        del job
        part = directory / f".{self.file_name}.part"
        records = (
            leaf_record(rollout, leaf, tool_calls=self.tool_calls)
            for rollout in rollouts
            for leaf in rollout.tree.leaves
        )
        report = export_trajectories_to_jsonl(records, part)
        # The advantage over a group is known only after its last row.
        rows = with_inter_advantage(lambda: _read_lines(part))
        write_json_lines(rows, directory / self.file_name)
        part.unlink()
        return Exported(
            trajectories=report.written, unscored=report.unscored, tampered=report.tampered
        )


@dataclass(frozen=True, slots=True)
class EpisodeExporter:
    """Writes one JSON line per rollout: a Verifiers v1 episode. An unscored leaf is left out."""

    shape: Shape
    is_flat: bool = False
    """Write one JSON line per trace, without the episode."""

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the episodes or their traces; see `Exporter`."""
        del job
        written = unscored = tampered = 0

        def lines() -> Iterator[dict[str, Any]]:
            nonlocal written, unscored, tampered
            for rollout in rollouts:
                leaves = rollout.tree.leaves
                missing = [leaf for leaf in leaves if leaf.reward is None]
                written += len(leaves) - len(missing)
                unscored += len(missing)
                tampered += sum(map(is_tampered, missing))
                record = episode(rollout, self.shape)
                if record is not None:
                    yield from record["traces"] if self.is_flat else [record]

        write_json_lines(lines(), directory / "traces.jsonl")
        return Exported(trajectories=written, unscored=unscored, tampered=tampered)


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
