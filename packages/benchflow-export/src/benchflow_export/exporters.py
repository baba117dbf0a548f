"""Exports by the name of their exporter. An export is complete or does not exist."""

import inspect
import os
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
"""This file marks an export, and names what is in its directory. Only a directory with this file
is replaced, and only if nothing else is there."""

ResultT = TypeVar("ResultT")


def publish(target: Path, write: Callable[[Path], ResultT]) -> ResultT:
    """Call `write` with an empty directory, then rename that directory to `target`.

    If `write` makes one file and `target` has its suffix, that file is renamed to `target`.
    An older export is replaced. A reader sees the old or the new export, or neither for an instant.

    Raises:
        UsageError: `target` is not an export, or has other files than those of the export.
        StoreError: A file cannot be written. The old export stays.
    """
    target = target.resolve()
    try:
        if not (target.suffix and target.is_file()):
            _refuse_foreign(target)
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
            (new / MARK).write_bytes(b"\0".join(sorted(_names(new))))
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
    """Raise UsageError if an export to `target` would delete what no export wrote."""
    mark = target / MARK
    if mark.is_file():
        # The mark of an earlier version is empty.
        written = mark.read_bytes()
        others = _names(target) - {*written.split(b"\0"), os.fsencode(MARK)} if written else None
        if others:
            raise UsageError(
                f"{str(target)!r} has {os.fsdecode(min(others))!r}, which the export did not write",
                hint="move it, or name a new directory",
            )
    elif target.exists() and (not target.is_dir() or _names(target)):
        raise UsageError(
            f"{str(target)!r} exists and is not an export", hint="name a new directory"
        )


def _names(directory: Path) -> set[bytes]:
    return {os.fsencode(entry.name) for entry in directory.iterdir()}
