"""Score the rollouts of a task together, after the last rollout of a job has ended."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_contracts import CostLimitError, RolloutRecord, RolloutTree, Task, VerifyResult
from benchflow_engine.config import RunConfig
from benchflow_engine.group_scores import load_group_reward, score_trees
from benchflow_engine.model_gateway import open_judge
from benchflow_store import (
    JUDGE_DIR,
    GroupRecord,
    LostMember,
    StoredRollout,
    append_group,
    lost_leaves,
    may_score,
    read_groups,
)
from benchflow_store.database import DATABASE_FILE, JobReader

from .begin import PlannedJob
from .budget import Budget, measured_judge


@dataclass(slots=True)
class _Group:
    """The rollouts of one task by one variant."""

    task: Task
    variant: str
    config: RunConfig
    trees: list[RolloutTree] = field(default_factory=list[RolloutTree])
    lost: list[LostMember] = field(default_factory=list[LostMember])


async def score_groups(job: PlannedJob, directory: Path, budget: Budget) -> None:
    """Score each group of a job whose variant names a group reward, and append its record.

    A group that was scored before with the same rollouts is not scored again. If the reward fails,
    the leaves of its group are unscored with the reason, and the other groups are scored. A reward
    that may ask the judge's model is not asked when the budget is used up: its leaves are
    unscored until the job continues with a greater budget.

    Raises:
        StoreError: A rollout cannot be read, or a record cannot be written.
        UsageError: The group reward cannot be imported.
    """
    plan = job.plan
    chosen = [at for at, each in enumerate(plan.variants) if each.run.reward.group_import_path]
    if not chosen:
        return
    members = defaultdict[tuple[int, int], list[int]](list)
    for index, (variant, number, _) in enumerate(plan.slots.places()):
        members[variant, number].append(index)
    for variant in chosen:
        config = plan.variants[variant].run
        reward = load_group_reward(config)
        assert reward is not None
        known = read_groups(directory)
        async with open_judge(config, directory / f"{JUDGE_DIR}-groups") as judge:
            for number in range(len(plan.tasks)):
                if not members[variant, number]:
                    continue
                group = await asyncio.to_thread(_read, job, directory, members[variant, number])
                if _is_known(group, reward.name, known):
                    continue
                over = budget.spent() if judge is not None else None
                record = await score_trees(
                    reward if over is None else _OverBudget(reward.name, over),
                    group.task,
                    group.trees,
                    lost=group.lost,
                    variant=group.variant,
                    judge=judge,
                )
                budget.add(measured_judge(record.judge))
                await asyncio.to_thread(append_group, directory, record)


@dataclass(frozen=True, slots=True)
class _OverBudget:
    """Replaces a group reward whose calls of a model would pass the budget."""

    name: str
    reason: str

    async def score_group(self, task: Task, leaves: Sequence[object]) -> Sequence[VerifyResult]:
        """Refuse; a later run of the job tries again."""
        del task, leaves
        raise CostLimitError(self.reason, retryable=True)


def _read(job: PlannedJob, directory: Path, members: Sequence[int]) -> _Group:
    plan = job.plan
    variant, task, _ = plan.slots.place(members[0])
    named, planned = plan.variants[variant], plan.tasks[task]
    group = _Group(job.tasks[planned.id], named.id, named.run)
    with JobReader(directory / DATABASE_FILE) as reader:
        for index in members:
            (slot,) = reader.slots(index, index + 1)
            record = None if slot.record is None else RolloutRecord.model_validate_json(slot.record)
            stored = None if record is None else StoredRollout(directory / record.rollout_id)
            if record is None or stored is None or not stored.has_begun:
                group.lost.append(LostMember(name=slot.name, reason=_reason(record)))
            else:
                group.trees.append(stored.tree)
    return group


def _reason(record: RolloutRecord | None) -> str:
    if record is None:
        return "the slot has no rollout that counts"
    error = record.error
    return "its files are not here" if error is None else f"{error.type}: {error.message}"


def _is_known(group: _Group, reward: str, known: Sequence[GroupRecord]) -> bool:
    shown = [(t.rollout_id, leaf.id) for t in group.trees for leaf in t.leaves if may_score(leaf)]
    lost = (*group.lost, *lost_leaves(group.trees))
    key = group.task.id, group.variant, reward
    return any(
        each.key == key
        and each.is_final
        and [(e.rollout, e.leaf) for e in each.leaves] == shown
        and each.lost == lost
        for each in known
    )
