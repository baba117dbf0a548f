"""Import trajectories that BenchFlow did not run, and score them by the reward of a task."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from benchflow_contracts import (
    Evidence,
    EvidenceMissingError,
    FinishedRollout,
    Importer,
    Reward,
    RewardError,
    RolloutNode,
    RolloutRecord,
    Task,
    UsageError,
    VerifyResult,
)
from benchflow_kernel import Registry
from benchflow_kernel.resolve import JudgePlane
from benchflow_kernel.rollout.judging import judged
from benchflow_store import write_imported

from benchflow_engine.config import RunConfig
from benchflow_engine.model_gateway import open_judge
from benchflow_engine.planes import load_rewards

GROUP: Final = "benchflow.importers"
FOREIGN_VERDICT: Final = "imported"
"""The name of the verdict of the file, after a BenchFlow reward has replaced it."""
_NAME_CHARS: Final = 100


async def import_rollouts(
    file: Path,
    format_name: str,
    jobs_dir: Path,
    *,
    task: Task | None = None,
    config: RunConfig | None = None,
) -> list[tuple[Path, RolloutRecord]]:
    """Import the rollouts of a file below `jobs_dir`; return the directory and record of each.

    With `task`, its rewards score each leaf by the recorded steps alone. Calls of the judge of
    `config` are counted in the verdicts, and not kept. A verdict of the file is then named
    `imported`. All rollouts are scored before the first one is written.

    Raises:
        StoreError: The file is damaged or not of this format, or a rollout was imported before.
        UnknownProviderError: No installed package reads the format.
        EvidenceMissingError: A reward of the task needs a sandbox. Nothing is written.
        UsageError: The file has no rollout, or the task has steps of its own.
    """
    importer = cast("Importer", Registry().resolve(GROUP, format_name))
    rewards = () if task is None else _rewards(config or RunConfig(), task)
    rollouts = list(importer(file))
    if not rollouts:
        raise UsageError(f"{str(file)!r} has no rollout", hint="export at least one trajectory")
    if task is not None:
        async with open_judge(config or RunConfig(), None) as judge:
            for rollout in rollouts:
                for leaf in rollout.tree.leaves:
                    await _score(leaf, task, rewards, judge)
                rollout.tree.status = "completed"
    written: list[tuple[Path, RolloutRecord]] = []
    for rollout in rollouts:
        directory = jobs_dir / _name(rollout)
        written.append((directory, write_imported(directory, rollout, task)))
    return written


def import_formats() -> list[str]:
    """Return the names of the formats that installed packages read."""
    return Registry().names(GROUP)


def _rewards(config: RunConfig, task: Task) -> Sequence[Reward]:
    if task.steps:
        raise UsageError(
            f"task {task.id!r} has steps, and each has rewards of its own",
            hint="score with a task that has one verifier",
        )
    return load_rewards(config, task)


async def _score(
    leaf: RolloutNode, task: Task, rewards: Sequence[Reward], judge: JudgePlane | None
) -> None:
    foreign = leaf.results.pop("reward", None)
    if foreign is not None:
        leaf.results[FOREIGN_VERDICT] = foreign
    for reward in rewards:
        try:
            async with judged(judge, "imported", "leaf") as judging:
                evidence = Evidence(task=task, judge=judging.model)
                leaf.results[reward.name] = judging.checked(await reward.score(leaf, evidence))
        except EvidenceMissingError as error:
            raise EvidenceMissingError(
                f"reward {reward.name!r} of task {task.id!r} cannot score an imported rollout:"
                f" {error}",
                hint="use a reward that reads only the steps, such as a judge, or run the task",
            ) from error
        except RewardError as error:
            reason = f"{type(error).__name__}: {error}"
            leaf.results[reward.name] = VerifyResult.unscored(reason)


def _name(rollout: FinishedRollout) -> str:
    """Return a name for a directory. The id of the rollout comes from a stranger."""
    text = re.sub(r"[^A-Za-z0-9_-]+", "-", rollout.tree.rollout_id)[:_NAME_CHARS]
    return f"imported-{text.strip('-') or 'rollout'}"
