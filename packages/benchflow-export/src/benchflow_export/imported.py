"""Rollouts that BenchFlow did not run: no trainer gets them without a word of the operator."""

from collections.abc import Iterable, Iterator

from benchflow_contracts import FinishedRollout, StoreError, TrainingOptions


class ImportedRolloutError(StoreError):
    """A rollout was imported, and the export is for a trainer."""

    default_hint = "it is not on-policy data; --imported train exports it all the same"


def refuse_imported(
    rollouts: Iterable[FinishedRollout], options: TrainingOptions
) -> Iterator[FinishedRollout]:
    """Yield the rollouts.

    Raises:
        ImportedRolloutError: A rollout was imported, and the options do not allow it.
    """
    for rollout in rollouts:
        source = rollout.imported_from
        if source is not None and options.imported == "refuse":
            raise ImportedRolloutError(
                f"rollout {rollout.tree.rollout_id!r} was imported from {source!r},"
                " and a trainer must not take it for its own"
            )
        yield rollout
