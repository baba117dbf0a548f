"""The return of a task with several steps, from their verdicts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchflow_contracts import NO_REWARDS, RolloutNode, Task, TaskStep, VerifyResult
from benchflow_contracts.verdict import MAX_REWARD

from benchflow_kernel.tree import step_verdicts

_BY_HARM = ("clean", "suspicious", "tampered")

GradedStep = tuple[TaskStep, VerifyResult]
"""A step that was graded, and its verdict."""


def step_return(task: Task, leaf: RolloutNode) -> VerifyResult:
    """Return the verdict of the path to `leaf`, by `[task] step_reward`.

    Steps that were not reached do not count. If a graded step has no verdict, the whole has no
    reward: otherwise an agent could break a verifier to remove a bad verdict. A verdict without
    anything to reward does not count in the mean. `meta["steps"]` has the
    verdict of each step.
    """
    verdicts = step_verdicts(leaf)
    graded = [(step, verdicts[step.name][1]) for step in task.steps if step.name in verdicts]
    if not graded:
        return VerifyResult.unscored("no step was graded")
    meta = _meta(task, graded)
    failed = next((entry for entry in graded if _is_missing(entry[1])), None)
    if failed is not None:
        step, verdict = failed
        return verdict.model_copy(
            update={
                "error": f"step {step.name!r} has no verdict: {verdict.error}",
                "events": (),
                "meta": meta,
            }
        )
    step, last = graded[-1]
    if task.config.step_reward == "final":
        return last.model_copy(update={"events": (), "meta": meta})
    return _mean(graded, meta)


def shortfall(step: TaskStep, verdict: VerifyResult | None) -> str | None:
    """Return the reason that no further step runs after this verdict, or None.

    A missing reward is below every `min_reward`.
    """
    if verdict is None or _is_missing(verdict):
        return f"step {step.name!r} has no verdict"
    rewards = _named(verdict)
    for name, minimum in step.min_reward.items():
        reward = rewards.get(name, -math.inf)
        if reward < minimum:
            return f"step {step.name!r}: {name} = {reward:g} is below min_reward {minimum:g}"
    return None


def _is_missing(verdict: VerifyResult) -> bool:
    return verdict.reward is None and verdict.error_type != NO_REWARDS


def _mean(graded: Sequence[GradedStep], meta: Mapping[str, Any]) -> VerifyResult:
    """Return the mean of each name. A step without the name counts as 0."""
    rewards = [_named(verdict) for _, verdict in graded]
    names = dict.fromkeys(name for items in rewards for name in items)
    if not names:
        unscored = VerifyResult.unscored("no step names a reward", grading=graded[-1][1].grading)
        return unscored.model_copy(update={"meta": meta})
    try:
        mean = {name: math.fsum(r.get(name, 0) for r in rewards) / len(rewards) for name in names}
        reward = mean["reward"] if "reward" in mean else math.fsum(mean.values()) / len(mean)
    except OverflowError:
        reward, mean = math.inf, {}
    if abs(reward) > MAX_REWARD:
        return VerifyResult.unscored(f"the mean of the steps' rewards is above {MAX_REWARD:g}")
    items = {name for _, verdict in graded for name in verdict.items}
    return VerifyResult(
        reward=reward,
        items={name: value for name, value in mean.items() if name in items},
        grading=graded[-1][1].grading,
        meta=meta,
    )


def _named(verdict: VerifyResult) -> Mapping[str, float]:
    """Return the rewards of a step by name."""
    if verdict.error_type == NO_REWARDS:
        return {}
    if verdict.reward_in_items and verdict.items:
        return verdict.items
    return {"reward": verdict.reward or 0.0, **verdict.items}


def _meta(task: Task, graded: Sequence[GradedStep]) -> dict[str, Any]:
    steps = [
        {
            "name": step.name,
            "reward": verdict.reward,
            "items": dict(verdict.items),
            "grading": verdict.grading,
            "error": verdict.error,
        }
        for step, verdict in graded
    ]
    stopped = shortfall(*graded[-1]) if len(graded) < len(task.steps) else None
    return {
        "steps": steps,
        **({} if stopped is None else {"stopped": stopped}),
        **_integrity([verdict for _, verdict in graded]),
    }


def _integrity(verdicts: Sequence[VerifyResult]) -> dict[str, Any]:
    """Return the worst integrity report of the steps. It applies to the whole."""
    reports = [verdict for verdict in verdicts if verdict.integrity is not None]
    if not reports:
        return {}
    worst = max(reports, key=lambda verdict: _BY_HARM.index(str(verdict.integrity)))
    return {"integrity": worst.meta["integrity"]}
