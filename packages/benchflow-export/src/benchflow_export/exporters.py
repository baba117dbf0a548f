"""Exports by the name of their exporter."""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from benchflow_contracts import Exported, Exporter, ExporterFactory, FinishedRollout
from benchflow_kernel import Registry

from .publish import publish

GROUP: Final = "benchflow.exporters"


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """An installed exporter."""

    name: str
    summary: str
    """The first line of its documentation."""


def export_formats() -> list[ExportFormat]:
    """Return the installed exporters by name.

    Raises:
        UsageError: An exporter cannot be imported.
    """
    registry = Registry()
    formats: list[ExportFormat] = []
    for name in registry.names(GROUP):
        text = inspect.getdoc(registry.resolve(GROUP, name)) or ""
        formats.append(ExportFormat(name, text.partition("\n")[0]))
    return formats


def load_exporter(name: str) -> Exporter:
    """Return the exporter called `name`.

    Raises:
        UnknownProviderError: No installed package provides the exporter.
    """
    return cast("ExporterFactory", Registry().resolve(GROUP, name))()


def write_export(name: str, rollouts: Iterable[FinishedRollout], target: Path) -> Exported:
    """Write `rollouts` with the exporter called `name`. `target` appears when it is complete.

    `target` is a directory, and its name is the name of the job. An export of one file is
    written as that file if `target` has the same suffix, such as `.jsonl`.

    Raises:
        UnknownProviderError: No installed package provides the exporter.
        UsageError: `target` exists, and an export did not make it.
        StoreError: A rollout's record is damaged, or a file cannot be written.
    """
    exporter, target = load_exporter(name), target.resolve()
    return publish(target, lambda scratch: exporter.export(target.name, rollouts, scratch))
