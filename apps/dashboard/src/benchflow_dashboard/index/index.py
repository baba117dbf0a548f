"""The index of one jobs directory."""

from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import StoreError
from benchflow_store import RolloutSummary, find_rollouts


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """One rollout as lists show it."""

    id: str
    job: str | None
    directory: Path
    task: str
    status: str
    reward: float | None
    finished_at: float


class Index:
    """The rollouts of a jobs directory."""

    def __init__(self, jobs_dir: Path) -> None:
        """Name the directory. The directory may be missing."""
        self.jobs_dir = jobs_dir

    def rollouts(self) -> list[RolloutEntry]:
        """Return all rollouts, the newest first."""
        entries: list[RolloutEntry] = []
        for stored in find_rollouts(self.jobs_dir):
            try:
                row = RolloutSummary.of(stored)
            except StoreError:
                continue
            parent = stored.directory.parent
            entries.append(
                RolloutEntry(
                    id=row.id,
                    job=None if parent == self.jobs_dir else parent.name,
                    directory=stored.directory,
                    task=row.task,
                    status=row.status,
                    reward=row.reward,
                    finished_at=row.finished_at,
                )
            )
        return sorted(entries, key=lambda entry: entry.finished_at, reverse=True)

    def find(self, prefix: str) -> list[RolloutEntry]:
        """Return the rollout with the id `prefix`, else those whose ids begin with `prefix`."""
        found = [entry for entry in self.rollouts() if entry.id.startswith(prefix)]
        return [entry for entry in found if entry.id == prefix] or found
