"""An export leaf by leaf, whose bytes are passed on as they are written."""

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchflow_contracts import (
    Exported,
    FinishedRollout,
    RolloutNode,
    TrainingOptions,
    UsageError,
    begin_export,
)
from benchflow_contracts.scratch import scratch_directory

from .exporters import exporter_with

_PART: Final = 1 << 20


class LeafStream:
    """The bytes of an export of one file. Use it as a context manager.

    The bytes of all calls together are the file. An exporter that needs whole rollouts gives all
    of its bytes at the end. Memory is bounded by one leaf, and by what the exporter keeps.
    """

    def __init__(self, name: str, options: TrainingOptions | None = None) -> None:
        """Prepare an export with the exporter called `name`.

        Raises:
            UnknownProviderError: No installed package provides the exporter.
            UsageError: The exporter does not take the options.
        """
        self._name = name
        self._exporter = exporter_with(name, options)
        self._scratch = scratch_directory("export")
        self._read = 0
        self.counts: Exported | None = None
        """The counts, after `finish`."""

    def __enter__(self) -> Self:
        self._home = self._scratch.__enter__()
        self._writer = begin_export(self._exporter, "export", self._home)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._scratch.__exit__(kind, error, traceback)

    def add(self, rollout: FinishedRollout, leaf: RolloutNode) -> bytes:
        """Export a scored leaf; return the bytes that were written."""
        self._writer.add(rollout, leaf)
        return b"".join(self._new_parts())

    def finish(self, rollouts: Iterable[FinishedRollout]) -> Iterable[bytes]:
        """Export the rest; yield the last bytes in parts of at most 1 MiB.

        Raises:
            UsageError: The export has several files.
        """
        self.counts = self._writer.finish(rollouts)
        yield from self._new_parts()

    def _new_parts(self) -> Iterable[bytes]:
        path = self._file()
        if path is None:
            return
        with path.open("rb") as file:
            file.seek(self._read)
            while part := file.read(_PART):
                self._read += len(part)
                yield part

    def _file(self) -> Path | None:
        entries = [each for each in self._home.iterdir() if not each.name.startswith(".")]
        if len(entries) > 1 or any(not each.is_file() for each in entries):
            raise UsageError(
                f"an export of the format {self._name!r} has several files",
                hint="name a directory with --output",
            )
        return entries[0] if entries else None
