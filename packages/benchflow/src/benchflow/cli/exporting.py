"""Exports of rollouts and jobs, and the list of their formats."""

from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts import FinishedRollout
from benchflow_export import export_formats, write_export

from .flags import Json
from .output import note, print_json, print_table


def list_formats(*, json: Json = False) -> None:
    """List the formats of `bench rollout export` and `bench eval export`.

    Examples:
        bench rollout formats
        bench rollout formats --json
    """
    formats = export_formats()
    if json:
        print_json([{"name": each.name, "summary": each.summary} for each in formats])
        return
    rows = [(each.name, each.summary) for each in formats]
    print_table(("format", "summary"), rows, empty="no exporters are installed")


def write_and_report(
    name: str, rollouts: Iterable[FinishedRollout], output: Path, *, json: bool
) -> None:
    """Write `output` with the exporter called `name`, and print the number of trajectories."""
    counts = write_export(name, rollouts, output)
    if json:
        print_json({"path": str(output), **counts.model_dump()})
    else:
        note(
            f"wrote {counts.trajectories} trajectories to {output}, {counts.unscored} unscored"
            f" ({counts.tampered} tampered with)"
        )
