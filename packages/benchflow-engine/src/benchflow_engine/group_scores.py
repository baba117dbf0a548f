"""Score the leaves of several rollouts of one task together."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import (
    BenchFlowError,
    GroupReward,
    RolloutNode,
    RolloutTree,
    StoreError,
    Task,
    VerifyResult,
)
from benchflow_contracts.pausing import running_timeout
from benchflow_kernel import credit_of, value_of

GROUP_FILE: Final = "group-rewards.jsonl"
_SECONDS: Final = 600


async def score_trees(
    reward: GroupReward, task: Task, trees: Sequence[RolloutTree], *, seconds: float = _SECONDS
) -> dict[str, Any]:
    """Add the verdicts of `reward` to the leaves of `trees`, and return the record of the group.

    Leaves that were not graded, or that the agent tampered with, are not shown to the reward and
    stay as they are. If the reward fails, is late, or returns something else than one verdict for
    each leaf, each shown leaf is unscored with the reason. Values and credits of forked trees are
    made anew.
    """
    shown = [(tree, leaf) for tree in trees for leaf in tree.leaves if _may_score(leaf)]
    leaves = [leaf for _, leaf in shown]
    verdicts = await _verdicts(reward, task, leaves, seconds) if leaves else list[VerifyResult]()
    for leaf, verdict in zip(leaves, verdicts, strict=True):
        leaf.results[reward.name] = verdict
    if reward.name == "reward":
        for tree in trees:
            _revalue(tree)
    return {
        "task": task.id,
        "task_digest": task.digest,
        "reward": reward.name,
        "leaves": [
            {
                "rollout": tree.rollout_id,
                "leaf": leaf.id,
                "result": leaf.results[reward.name].model_dump(mode="json", exclude_defaults=True),
            }
            for tree, leaf in shown
        ],
    }


def write_group(directory: Path, record: dict[str, Any]) -> None:
    """Append the record of a group to the file of a directory.

    Raises:
        StoreError: It cannot be written.
    """
    path = directory / GROUP_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(json.dumps(record).encode() + b"\n")
    except OSError as error:
        raise StoreError(f"{str(path)!r} cannot be written: {error}") from error


def _may_score(leaf: RolloutNode) -> bool:
    verdict = leaf.results.get("reward")
    return verdict is not None and verdict.integrity != "tampered"


async def _verdicts(
    reward: GroupReward, task: Task, leaves: Sequence[RolloutNode], seconds: float
) -> Sequence[VerifyResult]:
    scope = running_timeout(seconds)
    try:
        async with scope:
            found = cast("object", await reward.score_group(task, leaves))
    except Exception as error:  # noqa: BLE001 - every failure is a cause, not a score
        late = f"group reward {reward.name!r} took longer than {seconds:g} s"
        reason = late if scope.expired() else f"{type(error).__name__}: {error}"
        retryable = isinstance(error, BenchFlowError) and error.retryable
        lost = VerifyResult.unscored(reason, error_type=type(error).__name__, retryable=retryable)
        return [lost] * len(leaves)
    verdicts = list(cast("Sequence[object]", found)) if isinstance(found, Sequence) else []
    if len(verdicts) != len(leaves) or not all(isinstance(v, VerifyResult) for v in verdicts):
        reason = f"group reward {reward.name!r} did not return {len(leaves)} verdicts"
        return [VerifyResult.unscored(reason)] * len(leaves)
    return cast("Sequence[VerifyResult]", verdicts)


def _revalue(tree: RolloutTree) -> None:
    forks = [node for node in tree.nodes if node.branch is not None and node.branch.children]
    for node in tree.nodes:
        if node.value is not None:
            node.value = value_of(node)
    if forks:
        for node_id, credit in credit_of(tree).items():
            tree.index[node_id].credit = credit
