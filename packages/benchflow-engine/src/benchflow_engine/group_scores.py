"""Score the leaves of several rollouts of one task together."""

from collections.abc import Callable, Sequence
from typing import Final, cast

from benchflow_contracts import (
    BenchFlowError,
    GroupReward,
    JudgeUse,
    RolloutNode,
    RolloutTree,
    SupportsJudge,
    Task,
    UsageError,
    VerifyResult,
    needs_all_members,
)
from benchflow_contracts.pausing import running_timeout
from benchflow_kernel.resolve import JudgePlane
from benchflow_kernel.rollout.judging import judged
from benchflow_store import (
    GroupRecord,
    GroupVerdict,
    LostMember,
    apply_groups,
    lost_leaves,
    may_score,
)

from .config import RunConfig
from .planes import find_plugin, made_by

_SECONDS: Final = 600


def load_group_reward(config: RunConfig) -> GroupReward | None:
    """Return the group reward that the configuration names, if it names one.

    Raises:
        UsageError: It cannot be imported, or is not a GroupReward.
    """
    path = config.reward.group_import_path
    if path is None:
        return None
    factory = cast("Callable[[], object]", find_plugin("benchflow.rewards", "", path))
    with made_by(f"group reward {path!r}"):
        made = factory()
    if not callable(getattr(made, "score_group", None)) or not getattr(made, "name", ""):
        raise UsageError(
            f"{path!r} is not a GroupReward",
            hint="name a class or a function that returns an object with a name and score_group",
        )
    return cast("GroupReward", made)


async def score_trees(
    reward: GroupReward,
    task: Task,
    trees: Sequence[RolloutTree],
    *,
    lost: Sequence[LostMember] = (),
    variant: str | None = None,
    judge: JudgePlane | None = None,
    seconds: float = _SECONDS,
) -> GroupRecord:
    """Add the verdicts of `reward` to the leaves of `trees`, and return the record of the group.

    `lost` are members without a tree. Leaves that were not graded, or that the agent tampered
    with, are lost, too: the reward does not see them, and they stay as they are. If the reward
    fails, is late, needs a lost member, or returns something else than one verdict for each leaf,
    each leaf that is left is unscored with the reason. Values and credits of trees are made anew.
    """
    shown = [(tree, leaf) for tree in trees for leaf in tree.leaves if may_score(leaf)]
    leaves = [leaf for _, leaf in shown]
    missing = (*lost, *lost_leaves(trees))
    use: JudgeUse | None = None
    if not leaves:
        verdicts: Sequence[VerifyResult] = []
    elif missing and needs_all_members(reward):
        verdicts = [_incomplete(reward, missing)] * len(leaves)
    else:
        verdicts, use = await _ask(reward, task, leaves, judge, seconds)
    record = GroupRecord(
        task=task.id,
        task_digest=task.digest,
        variant=variant,
        reward=reward.name,
        leaves=tuple(
            GroupVerdict(rollout=tree.rollout_id, leaf=leaf.id, result=verdict)
            for (tree, leaf), verdict in zip(shown, verdicts, strict=True)
        ),
        lost=missing,
        judge=use,
    )
    for tree in trees:
        apply_groups(tree, [record])
    return record


def _incomplete(reward: GroupReward, missing: Sequence[LostMember]) -> VerifyResult:
    names = ", ".join(map(str, missing[:5]))
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    return VerifyResult.unscored(
        f"group reward {reward.name!r} needs all members, and the group lost {names}{more}",
        error_type="GroupIncompleteError",
    )


async def _ask(
    reward: GroupReward,
    task: Task,
    leaves: Sequence[RolloutNode],
    judge: JudgePlane | None,
    seconds: float,
) -> tuple[Sequence[VerifyResult], JudgeUse | None]:
    """Return the verdicts, and what the reward used of the judge's model."""
    if judge is None or not isinstance(reward, SupportsJudge):
        return await _verdicts(reward, task, leaves, seconds), None
    async with judged(judge, "groups", "group") as judging:
        if judging.model is not None:
            reward = reward.with_judge(judging.model)
            verdicts = await _verdicts(reward, task, leaves, seconds)
        else:
            verdicts = [VerifyResult(reward=0)] * len(leaves)
        checked = judging.checked(VerifyResult(reward=0))
    if checked.reward is None:
        verdicts = [checked.model_copy(update={"judge": None})] * len(leaves)
    return verdicts, checked.judge


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
