"""Writes a directory export, and says what it holds."""

from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts import FinishedRollout
from benchflow_export import write_export

from .output import note, print_json


def export_directory(
    name: str, rollouts: Iterable[FinishedRollout], output: Path, *, json: bool
) -> None:
    """Have the exporter called `name` write `output`."""
    said = write_export(name, rollouts, output)
    if json:
        print_json({"path": str(output), **said.model_dump()})
    else:
        note(f"wrote {said.trajectories} trajectories to {output}, {said.unscored} unscored")
