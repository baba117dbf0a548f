"""`bench rollout export --follow`: an export of a rollout that runs, leaf by leaf."""

import sys
from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts import Exported, TrainingOptions
from benchflow_export import LeafStream
from benchflow_store import StoredRollout, follow_leaves

from .export_flags import report_counts, write_and_report


def follow_export(
    directory: Path, name: str, output: Path, options: TrainingOptions, *, json: bool
) -> None:
    """Export the rollout in `directory` when it has ended; to `-`, each leaf when it is scored.

    Raises:
        StoreError: The rollout was cut short, or a file of it is damaged.
        UsageError: The format has several files, and `output` is `-`.
    """
    if output != Path("-"):
        for _ in follow_leaves(directory):
            pass
        write_and_report(
            name, [StoredRollout(directory).read_finished()], output, options, json=json
        )
        return
    with LeafStream(name, options) as stream:
        for rollout, leaf in follow_leaves(directory):
            _print([stream.add(rollout, leaf)])
        _print(stream.finish([StoredRollout(directory).read_finished()]))
        report_counts(stream.counts or Exported(trajectories=0, unscored=0), output)


def _print(parts: Iterable[bytes]) -> None:
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
