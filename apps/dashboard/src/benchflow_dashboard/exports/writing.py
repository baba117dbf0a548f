"""Writes an export of a selection. The rollouts are read one at a time."""

from pathlib import Path
from typing import Final

from benchflow_contracts import Exported, Exporter, StoreError
from benchflow_export import export_formats, load_exporter, publish

from benchflow_dashboard.index import Index
from benchflow_dashboard.notes.queries import Annotations, read_annotations

from .labelled import LABELLED, LabelledExporter
from .selection import Selection

_DOWNLOADS: Final = ("verifiers", "sft", "v1-leaves", "v1-graph", "v1-flat")
"""The formats of one file, so that a browser can load them."""
DEFAULT_FORMAT: Final = "verifiers"


def download_formats() -> dict[str, str]:
    """Return the formats of one file by name, with a line on each."""
    known = {each.name: each.summary for each in export_formats() if each.name in _DOWNLOADS}
    return {**known, LABELLED: "Labelled rollouts: a row with its labels and notes for each leaf."}


def write_file(selection: Selection, index: Index, name: str, directory: Path) -> Path:
    """Write an export of one file into an empty directory, and return the file.

    Raises:
        UsageError: No run has one of the ids.
        StoreError: A file of a rollout is missing or damaged, or the export cannot be written.
    """
    exporter = _exporter(name, index)
    try:
        exporter.export("selection", selection.finished(index), directory)
        [file] = directory.iterdir()
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write the export: {error}") from error
    return file


def write_target(selection: Selection, index: Index, name: str, target: Path) -> Exported:
    """Write an export to `target`, a file or a directory that appears when it is complete.

    Raises:
        UnknownProviderError: No installed package provides the exporter.
        UsageError: `target` exists and is not an export, or no run has one of the ids.
        StoreError: A file of a rollout is missing or damaged, or the export cannot be written.
    """
    exporter, rollouts = _exporter(name, index), selection.finished(index)
    return publish(
        target, lambda directory: exporter.export(target.resolve().name, rollouts, directory)
    )


def _exporter(name: str, index: Index) -> Exporter:
    def annotations(rollout: str) -> Annotations:
        with index.read() as session:
            return read_annotations(session, rollout)

    return LabelledExporter(annotations) if name == LABELLED else load_exporter(name)
