"""`group-rewards.jsonl`: the verdicts of a `GroupReward` on the rollouts of one task."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final, Self

from benchflow_contracts import (
    NO_REWARDS,
    JudgeUse,
    Model,
    RareModel,
    RolloutNode,
    RolloutTree,
    StoreError,
    VerifyResult,
)
from benchflow_kernel import credit_of, value_of
from pydantic import ValidationError

GROUP_FILE: Final = "group-rewards.jsonl"


class LostMember(RareModel):
    """A member of a group that the reward did not see. It has no reward, and never 0."""

    name: str
    """The rollout, or the slot of a job or the member of a service that has none."""
    leaf: str | None = None
    """Only this leaf, if others of the rollout were seen."""
    reason: str

    def __str__(self) -> str:
        """Return the name, with the leaf if it is only one."""
        return self.name if self.leaf is None else f"{self.name}:{self.leaf}"


class GroupVerdict(RareModel):
    """The verdict on one leaf."""

    rollout: str
    leaf: str
    result: VerifyResult


class GroupRecord(RareModel):
    """One line of the file. The records of the rollouts keep the verdicts of their own rewards."""

    task: str
    task_digest: str
    variant: str | None = None
    """Of a job."""
    reward: str
    """The name of the group reward. `reward` replaces the return of each leaf."""
    leaves: tuple[GroupVerdict, ...] = ()
    lost: tuple[LostMember, ...] = ()
    judge: JudgeUse | None = None
    """What the reward used of the judge's model."""

    @property
    def key(self) -> tuple[str, str | None, str]:
        """The group: a later record with the same key replaces an earlier one."""
        return self.task, self.variant, self.reward

    @property
    def is_final(self) -> bool:
        """Whether the group need not be scored again: no failure was temporary."""
        return not any(each.result.retryable for each in self.leaves)

    def is_of(self, other: Self) -> bool:
        """Return whether both records are of the same leaves and the same lost members."""
        mine, others = ([(e.rollout, e.leaf) for e in r.leaves] for r in (self, other))
        return self.key == other.key and mine == others and self.lost == other.lost


class GroupMean(Model):
    """What a group reward gave to the leaves of one variant. It is in no other number."""

    reward: str
    """The name of the group reward. `reward` replaces the return of each leaf in exports."""
    variant: str | None = None
    groups: int
    leaves: int
    """The leaves that have a verdict with a number."""
    mean: float | None
    unscored: int = 0
    """Leaves that the reward saw and did not score."""
    lost: int = 0
    """Members that the reward did not see."""


def group_means(records: Iterable[GroupRecord]) -> list[GroupMean]:
    """Return the mean of each group reward over the leaves of each variant."""
    found: dict[tuple[str, str | None], list[GroupRecord]] = {}
    for record in records:
        found.setdefault((record.reward, record.variant), []).append(record)
    means: list[GroupMean] = []
    for (reward, variant), groups in found.items():
        given = [leaf.result.counted().reward for group in groups for leaf in group.leaves]
        numbers = [each for each in given if each is not None]
        means.append(
            GroupMean(
                reward=reward,
                variant=variant,
                groups=len(groups),
                leaves=len(numbers),
                mean=fmean(numbers) if numbers else None,
                unscored=len(given) - len(numbers),
                lost=sum(len(group.lost) for group in groups),
            )
        )
    return means


def member_means(records: Iterable[GroupRecord]) -> dict[str, dict[str, float]]:
    """Return the mean over the scored leaves of each rollout, by group reward and rollout."""
    given: dict[str, dict[str, list[float]]] = {}
    for record in records:
        of_reward = given.setdefault(record.reward, {})
        for leaf in record.leaves:
            number = leaf.result.counted().reward
            if number is not None:
                of_reward.setdefault(leaf.rollout, []).append(number)
    return {
        reward: {rollout: fmean(numbers) for rollout, numbers in of_reward.items()}
        for reward, of_reward in given.items()
    }


def append_group(directory: Path, record: GroupRecord) -> None:
    """Append the record of a group to the file of a directory.

    Raises:
        StoreError: It cannot be written.
    """
    path = directory / GROUP_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            text = json.dumps(record.model_dump(mode="json", exclude_defaults=True))
            file.write(text.encode() + b"\n")
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be written: {error}") from error


def read_groups(directory: Path) -> list[GroupRecord]:
    """Return the newest record of each group of a directory; none without the file.

    An incomplete last line, of a process that was killed, is skipped.

    Raises:
        StoreError: The file cannot be read, or a line is damaged.
    """
    path = directory / GROUP_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {str(path)!r}: {error.strerror}") from error
    newest: dict[tuple[str, str | None, str], GroupRecord] = {}
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            record = GroupRecord.model_validate_json(line)
        except ValidationError as error:
            message = f"damaged group: {error.errors()[0]['msg']}"
            raise StoreError(message, where=f"{path}:{number}") from error
        newest[record.key] = record
    return list(newest.values())


def apply_groups(tree: RolloutTree, records: Iterable[GroupRecord]) -> None:
    """Add the verdicts of group rewards to the leaves of a tree.

    If a verdict is named `reward`, values and credits are made anew.
    """
    is_return = False
    for record in records:
        for verdict in record.leaves:
            if verdict.rollout == tree.rollout_id and verdict.leaf in tree.index:
                tree.index[verdict.leaf].results[record.reward] = verdict.result
                is_return = is_return or record.reward == "reward"
    if is_return:
        _revalue(tree)


def lost_leaves(trees: Sequence[RolloutTree]) -> list[LostMember]:
    """Return the leaves that a group reward is not shown, each with the reason."""
    lost: list[LostMember] = []
    for tree in trees:
        hidden = [leaf for leaf in tree.leaves if not may_score(leaf)]
        is_whole = len(hidden) == len(tree.leaves)
        for leaf in hidden[:1] if is_whole else hidden:
            node = None if is_whole else leaf.id
            lost.append(LostMember(name=tree.rollout_id, leaf=node, reason=_reason(tree, leaf)))
    return lost


def may_score(leaf: RolloutNode) -> bool:
    """Return whether a group reward sees a leaf: it has a verdict that counts.

    A leaf of which the task's own reward said that it has nothing to reward is seen, too.
    """
    verdict = leaf.results.get("reward")
    return verdict is not None and (
        verdict.counted().reward is not None or verdict.error_type == NO_REWARDS
    )


def _reason(tree: RolloutTree, leaf: RolloutNode) -> str:
    verdict, error = leaf.results.get("reward"), leaf.error or tree.error
    if verdict is not None:
        return verdict.counted().error or "its verdict does not count"
    return "it was never graded" if error is None else f"{error.type}: {error.message}"


def _revalue(tree: RolloutTree) -> None:
    forks = [node for node in tree.nodes if node.branch is not None and node.branch.children]
    for node in tree.nodes:
        if node.value is not None:
            node.value = value_of(node)
    if forks:
        for node_id, credit in credit_of(tree).items():
            tree.index[node_id].credit = credit
