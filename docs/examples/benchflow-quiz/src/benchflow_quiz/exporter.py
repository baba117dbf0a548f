"""The exporter of rewards."""

import json
from collections.abc import Iterable
from pathlib import Path

from benchflow_contracts import Exported, FinishedRollout


class RewardsExporter:
    """Writes one line for each scored leaf."""

    def export(self, job: str, rollouts: Iterable[FinishedRollout], directory: Path) -> Exported:
        """Write `rewards.jsonl` into `directory`."""
        del job
        scored = unscored = 0
        with (directory / "rewards.jsonl").open("w", encoding="utf-8") as file:
            for rollout in rollouts:
                for leaf in rollout.tree.leaves:
                    if leaf.reward is None:
                        unscored += 1
                        continue
                    scored += 1
                    row = {"task": rollout.tree.task_id, "reward": leaf.reward}
                    file.write(json.dumps(row) + "\n")
        return Exported(trajectories=scored, unscored=unscored)
