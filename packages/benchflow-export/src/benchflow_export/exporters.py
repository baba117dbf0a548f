"""Exports by the name of their exporter."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, cast

from benchflow_contracts import Exported, Exporter, ExporterFactory, FinishedRollout
from benchflow_kernel import Registry

from .publish import publish

GROUP: Final = "benchflow.exporters"


def load_exporter(name: str) -> Exporter:
    """Return the exporter called `name`.

    Raises:
        UnknownProviderError: No distribution provides it.
    """
    return cast("ExporterFactory", Registry().resolve(GROUP, name))()


def write_export(name: str, rollouts: Iterable[FinishedRollout], target: Path) -> Exported:
    """Have the exporter called `name` write `rollouts`; `target` appears when it is whole.

    The job is called what `target` is called.

    Raises:
        UnknownProviderError: No distribution provides the exporter.
        UsageError: `target` exists, and no export made it.
        StoreError: A rollout's record is damaged, or nothing could be written.
    """
    exporter, target = load_exporter(name), target.resolve()
    return publish(target, lambda scratch: exporter.export(target.name, rollouts, scratch))
