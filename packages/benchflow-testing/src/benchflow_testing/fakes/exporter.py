"""An exporter that writes the rewards of leaves."""

from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts.exporter import Exported, FinishedRollout


class FakeExporter:
    """Writes `rewards.txt` with one line per scored leaf, and records the jobs."""

    def __init__(self) -> None:
        self.jobs: list[str] = []

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write the rewards."""
        self.jobs.append(job)
        leaves = [
            (rollout.tree.rollout_id, leaf) for rollout in rollouts for leaf in rollout.tree.leaves
        ]
        lines = [f"{name} {n.id} {n.reward}\n" for name, n in leaves if n.reward is not None]
        (directory / "rewards.txt").write_text("".join(lines), encoding="utf-8")
        return Exported(trajectories=len(lines), unscored=len(leaves) - len(lines))
