"""Exports by the name of their exporter. An export is complete or does not exist."""

import inspect
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from benchflow_contracts import (
    BenchFlowError,
    Exported,
    Exporter,
    ExporterFactory,
    FinishedRollout,
    StoreError,
    TakesTrainingOptions,
    TrainingOptions,
    UsageError,
)
from benchflow_kernel import Registry

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


def exporter_with(name: str, options: TrainingOptions | None = None) -> Exporter:
    """Return the exporter called `name` with these options.

    Raises:
        UnknownProviderError: No installed package provides the exporter.
        UsageError: The exporter does not take these options.
    """
    exporter = load_exporter(name)
    if options is None or options == TrainingOptions():
        return exporter
    if not isinstance(exporter, TakesTrainingOptions):
        raise UsageError(
            f"the format {name!r} does not take options for trainers",
            hint="leave out --advantage, --counterfactual and --require-tokens",
        )
    return exporter.with_options(options)


def write_export(
    name: str,
    rollouts: Iterable[FinishedRollout],
    target: Path,
    options: TrainingOptions | None = None,
) -> Exported:
    """Write `rollouts` with the exporter called `name`. `target` appears when it is complete.

    `target` is a directory, and its name is the name of the job. An export of one file is
    written as that file if `target` has the same suffix, such as `.jsonl`.

    Raises:
        UnknownProviderError: No installed package provides the exporter.
        UsageError: `target` is not an export, or the exporter does not take the options.
        StoreError: A rollout's record is damaged, or a file cannot be written.
    """
    exporter, target = exporter_with(name, options), target.resolve()

    def write(directory: Path) -> Exported:
        try:
            return exporter.export(target.name, rollouts, directory)
        except (BenchFlowError, OSError):
            raise
        except Exception as error:
            raise StoreError(
                f"the exporter {name!r} failed: {type(error).__name__}: {error}",
                hint="show its authors the traceback, which --debug prints",
            ) from error

    return publish(target, write)


MARK: Final = ".benchflow-export"
"""This file marks an export. Only a directory with this file is replaced."""

ResultT = TypeVar("ResultT")


def publish(target: Path, write: Callable[[Path], ResultT]) -> ResultT:
    """Call `write` with an empty directory, then rename that directory to `target`.

    If `write` makes one file and `target` has its suffix, that file is renamed to `target`.
    An older export is replaced. A reader sees the old or the new export, or neither for an instant.

    Raises:
        UsageError: `target` is not an export, and not an empty directory.
        StoreError: A file cannot be written. The old export stays.
    """
    target = target.resolve()
    if not (target.suffix and target.is_file()):
        _refuse_foreign(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name[:50]}.", dir=target.parent, ignore_cleanup_errors=True
        ) as scratch:
            new, old = Path(scratch) / "new", Path(scratch) / "old"
            new.mkdir()
            result = write(new)
            file = None if target.is_dir() else _only_file(new, target.suffix)
            if file is not None:
                file.replace(target)
                return result
            _refuse_foreign(target)
            (new / MARK).touch()
            _replace(target, new, old)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"cannot export to {str(target)!r}: {error}") from error
    return result


def _only_file(directory: Path, suffix: str) -> Path | None:
    entries = list(directory.iterdir())
    matches = [file for file in entries if suffix and file.suffix == suffix and file.is_file()]
    return matches[0] if len(entries) == 1 and matches else None


def _replace(target: Path, new: Path, old: Path) -> None:
    # A directory cannot be renamed over a directory that is not empty.
    if target.exists():
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise


def _refuse_foreign(target: Path) -> None:
    """Raise UsageError if `target` exists and is neither an export nor an empty directory."""
    if not target.exists() or (target / MARK).is_file():
        return
    if not target.is_dir() or any(target.iterdir()):
        raise UsageError(
            f"{str(target)!r} exists and is not an export", hint="name a new directory"
        )
