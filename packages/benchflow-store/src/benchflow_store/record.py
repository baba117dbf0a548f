"""Make the record of a rollout from its tree, or from the error that prevented it."""

import hashlib
import math
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, cast

from benchflow_contracts import (
    NO_REWARDS,
    BeganFrom,
    BenchFlowError,
    Cause,
    Grading,
    JudgeUse,
    NodeError,
    Prior,
    RolloutIdentity,
    RolloutNode,
    RolloutRecord,
    RolloutTree,
    Task,
    Usage,
    blame,
)
from benchflow_contracts.gateway import EndpointProbe
from benchflow_kernel import value_of
from benchflow_kernel.faults import node_error

if TYPE_CHECKING:
    from benchflow_contracts import ModelCall
    from benchflow_kernel import CheckpointManifest

RESUMED_FROM: Final = "resumed_from"
"""The entry of the log's first event with a `BeganFrom`."""

_MAX_TASK_BYTES: Final = 200

_NUMBERS: Final = re.compile(r"[0-9a-f]{8,}|\d+")

_ALONE = RolloutIdentity()
"""A rollout outside a job."""


@dataclass(frozen=True, slots=True)
class RanWith:
    """The names of the agent, the model and the sandbox of a rollout."""

    agent: str
    model: str | None
    sandbox: str


def record_from_tree(
    tree: RolloutTree,
    task: Task,
    ran: RanWith,
    *,
    identity: RolloutIdentity = _ALONE,
    probe: EndpointProbe | None = None,
) -> RolloutRecord:
    """Summarise a tree that has ended. `probe` is that of the agents' model endpoint."""
    nodes, leaves = list(tree.nodes), tree.leaves
    value = value_of(tree.root)
    steps = [node.step for node in nodes if node.step is not None]
    error = _first_error(tree, leaves)
    only = leaves[0].results.get("reward") if len(leaves) == 1 else None
    return RolloutRecord(
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
        branches=sum(n.branch is not None and n.branch.children > 0 for n in nodes),
        error=error,
        cause=_cause(leaves, error),
        images=tree.images,
        verifier_images=_verifier_images(nodes),
        slot=identity.slot,
        attempt=identity.attempt,
        epoch=identity.epoch,
        began_from=read_began_from(tree.meta),
        judge=_judge_use(nodes),
        **_limits(tree),
        endpoint_probe=probe,
        finished_at=time.time(),
    )


def _judge_use(nodes: list[RolloutNode]) -> JudgeUse | None:
    """Return what all verdicts used of the judge's model; `None` if no reward asked it."""
    verdicts = (verdict for node in nodes for verdict in node.results.values())
    used = [verdict.judge for verdict in verdicts if verdict.judge is not None]
    return sum(used, JudgeUse()) if used else None


def _limits(tree: RolloutTree) -> dict[str, Any]:
    """Return the seed and the deadline of the configuration in the log."""
    config: object = tree.meta.get("config")
    values = cast("dict[str, Any]", config) if isinstance(config, dict) else {}
    names = ("seed", "deadline_sec")
    return {name: values[name] for name in names if values.get(name) is not None}


def record_from_error(
    rollout_id: str,
    task: Task,
    ran: RanWith,
    error: BenchFlowError,
    *,
    identity: RolloutIdentity = _ALONE,
) -> RolloutRecord:
    """Return the record of a rollout that could not begin."""
    return RolloutRecord(
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


def read_began_from(meta: Mapping[str, object]) -> BeganFrom:
    """Read the meta of a tree: of a rollout that resumed, was branched, or began anew."""
    if (resumed := meta.get(RESUMED_FROM)) is not None:
        return BeganFrom.model_validate(resumed)
    branched = cast("Mapping[str, str] | None", meta.get("continued_from"))
    if branched is None:
        return BeganFrom()
    return BeganFrom(
        point="checkpoint", rollout=branched["rollout_id"], checkpoint=branched["node"]
    )


def sum_prior(manifest: "CheckpointManifest", calls: "Mapping[str, ModelCall]") -> Prior:
    """Sum up the steps to a checkpoint. `calls` are the recorded calls of the attempt."""
    steps = [saved.step for saved in manifest.history if saved.step is not None]
    ids = [call for step in steps for call in step.model_calls]
    usages = [step.usage for step in steps if step.usage is not None]
    costs = [calls[i].cost_usd for i in ids if i in calls]
    known = [cost for cost in costs if cost is not None]
    return Prior(
        steps=len(steps),
        model_calls=len(ids),
        usage=Usage(
            input_tokens=sum(usage.input_tokens for usage in usages),
            output_tokens=sum(usage.output_tokens for usage in usages),
            cached_tokens=sum(usage.cached_tokens for usage in usages),
        ),
        cost_usd=sum(known) if known else None,
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


def _verifier_images(nodes: list[RolloutNode]) -> dict[str, str]:
    verdicts = (verdict for node in nodes for verdict in node.results.items())
    return {name: str(v.meta["image"]) for name, v in verdicts if "image" in v.meta}


def _first_error(tree: RolloutTree, leaves: list[RolloutNode]) -> NodeError | None:
    failed = tree.error or next((node.error for node in tree.nodes if node.error), None)
    verdicts = (leaf.results.get("reward") for leaf in leaves)
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


def _cause(leaves: list[RolloutNode], error: NodeError | None) -> Cause | None:
    verdicts = [leaf.results["reward"] for leaf in leaves if "reward" in leaf.results]
    cause = next((verdict.cause for verdict in verdicts if verdict.cause is not None), None)
    if cause is not None or any(verdict.reward is not None for verdict in verdicts):
        return cause
    if error is None or error.type == NO_REWARDS:
        return None
    return Cause(by=error.caused_by, what=error.message)


def new_rollout_id(task_id: str) -> str:
    """Return `<task>__<8 hex digits>`, without the organisation of the task.

    A long name of a task is cut: the id is a file name, of at most 255 bytes.
    """
    name = task_id.rsplit("/", 1)[-1].encode()[:_MAX_TASK_BYTES].decode(errors="ignore")
    return f"{name}__{secrets.token_hex(4)}"


def new_job_name() -> str:
    """Return `YYYY-MM-DD__HH-MM-SS`, in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%d__%H-%M-%S")


def pass_at_k(attempts: int, passes: int, k: int) -> float:
    """Return the unbiased estimate that at least one of `k` attempts passes.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1:
    1 - C(n - c, k) / C(n, k). Requires 1 <= k <= attempts.
    """
    return 1 - math.comb(attempts - passes, k) / math.comb(attempts, k)


def error_fingerprint(error: NodeError) -> str:
    """Return 12 hex digits that are equal for errors with one cause.

    Numbers and ids in the first line of the message do not count.
    """
    first = error.message.splitlines()[0] if error.message else ""
    text = "\0".join((error.boundary, error.type, _NUMBERS.sub("#", first)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
