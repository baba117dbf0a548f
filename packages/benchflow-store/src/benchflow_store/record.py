"""RolloutRecord: the summary of a rollout, one line of `results.jsonl`."""

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import Any, Literal, Self

from benchflow_contracts import (
    NO_REWARDS,
    BenchFlowError,
    Cause,
    Grading,
    Integrity,
    Model,
    NodeError,
    RolloutIdentity,
    RolloutNode,
    RolloutTree,
    Status,
    Task,
    Value,
    blame,
)
from benchflow_kernel import value_of
from benchflow_kernel.faults import node_error
from pydantic import Field, model_validator

from .began_from import BeganFrom

_ALONE = RolloutIdentity()
"""A rollout outside a job."""


@dataclass(frozen=True, slots=True)
class RanWith:
    """The names of the agent, the model and the sandbox of a rollout."""

    agent: str
    model: str | None
    sandbox: str


class RolloutRecord(Model):
    """`result.json`. An unscored rollout has `reward: null` and a cause."""

    schema_version: Literal["1.0"] = "1.0"
    rollout_id: str
    task_id: str
    task_digest: str
    agent: str
    model: str | None
    sandbox: str
    status: Status
    """`ungraded`: the agent ran to its end, and no grading gave a verdict."""
    reward: float | None = None
    """V of the root. For a linear rollout, V is its reward."""
    value: Value | None = None
    rewards: Mapping[str, float] | None = None
    """The items of the verdict on the only leaf; `null` for a tree, or without a score."""
    grading: Grading | None = None
    integrity: Integrity | None = None
    """The worst integrity among the verdicts on the leaves."""
    tampered: int = 0
    """The number of leaves whose verdict does not count: the agent may have steered the tests."""
    claimed: float | None = None
    """The mean of all verdicts, also those that do not count. `None` if every verdict counts."""
    steps: int = 0
    asks: int = 0
    leaves: int = 0
    scored: int = 0
    branches: int = 0
    error: NodeError | None = None
    """The first failure, with the boundary where it happened."""
    cause: Cause | None = None
    """The cause of a missing verdict. If it is the agent, the rollout still has a score."""
    images: Mapping[str, str] = {}
    """The images of the first sandbox, as `main`, and of each service. An image of a registry is
    `NAME@sha256:HEX`, another one `sha256:HEX`. Empty if the sandbox came from a checkpoint."""
    verifier_images: Mapping[str, str] = {}
    """The images of grading sandboxes that are not forks of the agent's sandbox, by verdict."""
    slot: str | None = None
    """The slot of the job's plan: `TASK#REPEAT`."""
    attempt: int | None = Field(default=None, ge=1)
    """The number of the try of the slot, from 1. `None` outside a job."""
    epoch: str | None = None
    """The run of the job that made the attempt. A later run has a greater one."""
    began_from: BeganFrom = BeganFrom()
    """The start of the task, or the checkpoint of the earlier attempt that this one resumed."""
    finished_at: float
    """Seconds since the epoch."""

    @model_validator(mode="after")
    def _upgrade_older_record(self) -> Self:
        error = self.error
        has_cause = error is not None and error.type != NO_REWARDS
        if self.status == "completed" and self.reward is None and not self.tampered and has_cause:
            object.__setattr__(self, "status", "ungraded")
        return self

    @property
    def is_final(self) -> bool:
        """Whether a resumed job does not run the rollout again: it ended and was graded."""
        return self.status == "completed" and (self.reward is not None or self.tampered > 0)

    def counted_reward(self, *, count_tampered: bool = False) -> float | None:
        """Return the reward that means count, `None` without a score.

        A rollout whose verdict the agent may have steered counts as 0; with `count_tampered`, its
        verdict counts.
        """
        if count_tampered and self.claimed is not None:
            return self.claimed
        return 0.0 if self.reward is None and self.tampered else self.reward

    @classmethod
    def of(
        cls,
        tree: RolloutTree,
        task: Task,
        ran: RanWith,
        *,
        identity: RolloutIdentity = _ALONE,
    ) -> "RolloutRecord":
        """Summarise a tree that has ended."""
        leaves = tree.leaves
        value = value_of(tree.root)
        steps = [node.step for node in tree.nodes if node.step is not None]
        only = leaves[0].results.get("reward") if len(leaves) == 1 else None
        return cls(
            rollout_id=tree.rollout_id,
            task_id=task.id,
            task_digest=task.digest,
            agent=ran.agent,
            model=ran.model,
            sandbox=ran.sandbox,
            status=tree.status,
            reward=None if value is None else value.mean,
            value=value,
            rewards=None if only is None or only.reward is None else dict(only.items),
            grading=_grading(leaves),
            **_integrity(leaves),
            steps=len(steps),
            asks=sum(step.ask is not None for step in steps),
            leaves=len(leaves),
            scored=sum(leaf.reward is not None for leaf in leaves),
            branches=sum(n.branch is not None and n.branch.children > 0 for n in tree.nodes),
            error=_first_error(tree),
            cause=_cause(tree),
            images=tree.images,
            verifier_images=_verifier_images(tree),
            slot=identity.slot,
            attempt=identity.attempt,
            epoch=identity.epoch,
            began_from=BeganFrom.of(tree.meta),
            finished_at=time.time(),
        )

    @classmethod
    def from_error(
        cls,
        rollout_id: str,
        task: Task,
        ran: RanWith,
        error: BenchFlowError,
        *,
        identity: RolloutIdentity = _ALONE,
    ) -> "RolloutRecord":
        """Return the record of a rollout that could not begin."""
        return cls(
            rollout_id=rollout_id,
            task_id=task.id,
            task_digest=task.digest,
            agent=ran.agent,
            model=ran.model,
            sandbox=ran.sandbox,
            status="failed",
            error=node_error(error),
            cause=blame(error, inside="task"),
            slot=identity.slot,
            attempt=identity.attempt,
            epoch=identity.epoch,
            finished_at=time.time(),
        )


def _grading(leaves: list[RolloutNode]) -> Grading | None:
    verdicts = (leaf.results.get("reward") for leaf in leaves)
    modes: set[Grading] = {v.grading for v in verdicts if v is not None and v.reward is not None}
    return modes.pop() if len(modes) == 1 else None


def _integrity(leaves: list[RolloutNode]) -> dict[str, Any]:
    verdicts = [leaf.results["reward"] for leaf in leaves if "reward" in leaf.results]
    grades = {verdict.integrity for verdict in verdicts}
    worst = next((grade for grade in ("tampered", "suspicious", "clean") if grade in grades), None)
    tampered = sum(v.reward is not None and v.integrity == "tampered" for v in verdicts)
    rewards = [verdict.reward for verdict in verdicts if verdict.reward is not None]
    claimed = fmean(rewards) if tampered else None
    return {"integrity": worst, "tampered": tampered, "claimed": claimed}


def _verifier_images(tree: RolloutTree) -> dict[str, str]:
    verdicts = (verdict for node in tree.nodes for verdict in node.results.items())
    return {name: str(v.meta["image"]) for name, v in verdicts if "image" in v.meta}


def _first_error(tree: RolloutTree) -> NodeError | None:
    failed = tree.error or next((node.error for node in tree.nodes if node.error), None)
    verdicts = (leaf.results.get("reward") for leaf in tree.leaves)
    verdicts_that_count = (verdict.counted() for verdict in verdicts if verdict is not None)
    verdict = next((verdict for verdict in verdicts_that_count if verdict.error), None)
    if verdict is None or verdict.error is None:
        return failed
    cause = verdict.cause or Cause(by="unknown", what=verdict.error)
    is_outside = cause.by in {"host", "operator"}
    # A late agent is graded, too. If its grading failed, the grading is why the score is missing.
    if failed is not None and not (verdict.retryable or is_outside):
        return failed
    return NodeError(
        boundary="reward",
        type=verdict.error_type or "RewardError",
        message=verdict.error,
        hint=cause.hint if is_outside else None,
        retryable=verdict.retryable,
        retry_after=cause.retry_after,
        stops_job=cause.stops_job,
        caused_by=cause.by,
    )


def _cause(tree: RolloutTree) -> Cause | None:
    verdicts = [leaf.results["reward"] for leaf in tree.leaves if "reward" in leaf.results]
    cause = next((verdict.cause for verdict in verdicts if verdict.cause is not None), None)
    if cause is not None or any(verdict.reward is not None for verdict in verdicts):
        return cause
    error = _first_error(tree)
    if error is None or error.type == NO_REWARDS:
        return None
    return Cause(by=error.caused_by, what=error.message)


def new_rollout_id(task_id: str) -> str:
    """Return `<task>__<8 hex digits>`, without the organisation of the task."""
    return f"{task_id.rsplit('/', 1)[-1]}__{secrets.token_hex(4)}"


def new_job_name() -> str:
    """Return `YYYY-MM-DD__HH-MM-SS`, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d__%H-%M-%S")


def pass_at_k(attempts: int, passes: int, k: int) -> float:
    """Return the unbiased estimate that at least one of `k` attempts passes.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1:
    1 - C(n - c, k) / C(n, k). Requires 1 <= k <= attempts.
    """
    return 1 - math.comb(attempts - passes, k) / math.comb(attempts, k)
