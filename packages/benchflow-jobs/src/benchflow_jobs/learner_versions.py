"""The learner stores of a sequential job: one for each variant."""

from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts import LearnerVersion, RolloutRecord
from benchflow_engine.learner import LearnerDirectory
from benchflow_store.database import ResolvedSlot

from .planning import ResolvedJob


class LearnerVersions:
    """The newest version of each variant's learner store.

    The record of a rollout names the version that the rollout made. So the commit of the record
    commits the version, too: a version counts if and only if its rollout counts.
    """

    def __init__(self, plan: ResolvedJob, directory: Path, slots: Iterable[ResolvedSlot]) -> None:
        """Begin with the versions that the slots of the job's record name."""
        self._directory = directory
        self._max_bytes = plan.config.learner.max_mb << 20
        self._newest: dict[str, tuple[int, int, LearnerVersion]] = {}
        """By variant, after the generation and the epoch of its rollout."""
        for slot in slots:
            if slot.record is not None:
                self.note(slot.variant, RolloutRecord.model_validate_json(slot.record))

    def note(self, variant: str, record: RolloutRecord) -> None:
        """Take over the version of a rollout whose record is durable, if the version is newer.

        A stopped process may leave a result that a resume adopts later. If the next process has
        made a version of the same generation, the greater epoch decides, as for attempts.
        """
        after = None if record.learner is None else record.learner.after
        if after is None:
            return
        epoch = int(record.epoch) if record.epoch and record.epoch.isdecimal() else 0
        newest = self._newest.get(variant)
        if newest is None or newest[:2] < (after.generation, epoch):
            self._newest[variant] = after.generation, epoch, after

    def newest(self, variant: str) -> LearnerVersion:
        """Return the version that the next rollout of a variant begins with."""
        return self._newest[variant][2] if variant in self._newest else LearnerVersion()

    def open(self, variant: str, rollout: str) -> LearnerDirectory:
        """Return the store for a rollout, which may not run beside another one of its variant."""
        return LearnerDirectory(
            self.newest(variant), self._directory / rollout, max_bytes=self._max_bytes
        )
