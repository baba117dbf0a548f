"""Score nodes: after the end of the agent, before the teardown of the world."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from benchflow_contracts import (
    NO_REWARDS,
    BenchFlowError,
    Cause,
    Evidence,
    LiveWorld,
    NodeScored,
    Reward,
    RolloutNode,
    RolloutTree,
    Sandbox,
    Task,
    VerifyResult,
    blame,
    expect_host,
    needs_processes,
)
from benchflow_contracts.pausing import running_time, running_timeout

from benchflow_kernel.faults import classify
from benchflow_kernel.resolve import Plan
from benchflow_kernel.tree import verdict_name
from benchflow_kernel.world import World
from benchflow_kernel.world.identity import identity_of

from .judging import judged
from .record import Journal
from .step_return import step_return

if TYPE_CHECKING:
    from benchflow_contracts.cause import SupportsMemoryKills


@dataclass(frozen=True, slots=True)
class _Subject:
    """The subject of grading: the task, or one of its steps."""

    task: Task
    rewards: Sequence[Reward]
    log_dir: Path | None
    index: int = 0
    step: str | None = None
    continues: bool = False

    def name_of(self, reward: Reward) -> str:
        return reward.name if self.step is None else verdict_name(self.step, reward.name)


async def verify(
    plan: Plan, journal: Journal, world: World, leaf: str, ungraded: int | None
) -> None:
    """Score the leaf of a branch. Its agents have ended.

    If a reward fails, is late, or returns an invalid value, its result is unscored, with the
    reason. The other rewards still score. A failure never becomes a score. In a task of several
    steps, only step `ungraded` is scored, if there is one; the return of the leaf then comes
    from the verdicts of all steps.

    Raises:
        EnvironmentError_: The final state cannot be read; nothing is scored.
        HostError: The host failed processes of the agent; nothing is scored.
    """
    if not plan.task.steps:
        subject = _Subject(plan.task, plan.planes.rewards, world.verifier_dir)
        await _score_all(plan, journal, world, leaf, subject)
        return
    if ungraded is not None:
        await verify_step(plan, journal, world, leaf, ungraded, continues=False)
    result = step_return(plan.task, journal.node(leaf))
    journal.append(NodeScored, node=leaf, name="reward", result=result)


async def verify_step(
    plan: Plan, journal: Journal, world: World, node: str, index: int, *, continues: bool
) -> None:
    """Score one step of the task at `node`, where the step ended.

    With `continues`, the sandbox stays for the next step. Each step has its own verify
    deadline.

    Raises:
        EnvironmentError_: The state cannot be read; nothing is scored.
    """
    step = plan.task.steps[index].name
    subject = _Subject(
        task=plan.task.step(index),
        rewards=plan.rewards(index),
        log_dir=world.verifier_dir_of(step),
        index=index,
        step=step,
        continues=continues,
    )
    await _score_all(plan, journal, world, node, subject)


async def _score_all(
    plan: Plan, journal: Journal, world: World, node_id: str, subject: _Subject
) -> None:
    expect_host(world.sandbox)
    kills = _memory_kills(world.sandbox)
    state = None if plan.config.capture_state == "none" else await world.query()
    if state is not None:
        journal.record_state(node_id, state, is_graded=True)
    # A hermetic grading ends the services with the sandbox.
    await world.save_service_logs()
    node = journal.node(node_id)
    deadline = running_time() + plan.config.deadlines.verify
    for index, reward in enumerate(subject.rewards):
        later = any(needs_processes(other) for other in subject.rewards[index + 1 :])
        may_end = not (subject.continues or later)
        evidence = _evidence(plan, world, node_id, subject, may_end_processes=may_end)
        async with judged(plan.planes.judge, plan.rollout_id, node_id) as judging:
            evidence = replace(evidence, judge=judging.model)
            result = judging.checked(await _score(reward, node, evidence, deadline))
        result = _with_token_mark(plan, result)
        if kills:
            # The score may be 0 for this reason alone, so the record names it.
            meta = {**result.meta, "agent_memory_kills": kills}
            result = result.model_copy(update={"meta": meta})
        journal.append(NodeScored, node=node_id, name=subject.name_of(reward), result=result)


def _memory_kills(sandbox: Sandbox) -> int:
    # An isinstance check of a protocol costs more than writing an event.
    if not hasattr(sandbox, "memory_kills"):
        return 0
    return cast("SupportsMemoryKills", sandbox).memory_kills()


def _with_token_mark(plan: Plan, result: VerifyResult) -> VerifyResult:
    """Name in the integrity report that a token for the model was in the sandbox."""
    if plan.model_path != "token":
        return result
    report = cast("Mapping[str, object]", result.meta.get("integrity") or {})
    mark = "a token for the model was in the sandbox"
    meta = {**result.meta, "integrity": {**report, "credential": mark}}
    return result.model_copy(update={"meta": meta})


def _evidence(
    plan: Plan, world: World, node: str, subject: _Subject, *, may_end_processes: bool
) -> Evidence:
    return Evidence(
        task=subject.task,
        world=LiveWorld(
            sandbox=world.sandbox,
            provider=plan.planes.provider,
            grading_spec=world.grading_spec(subject.task),
            environment=world.environment,
            continues=subject.continues,
            before_tests=partial(world.phases.enter_tests, subject.index),
            identity=identity_of(plan, node),
            may_end_processes=may_end_processes,
        ),
        plays_solution=plan.solution,
        log_dir=subject.log_dir,
        read_messages=world.message_reader(),
    )


async def _score(
    reward: Reward, node: RolloutNode, evidence: Evidence, deadline: float
) -> VerifyResult:
    scope = running_timeout(deadline - running_time())
    try:
        async with scope:
            result = cast("object", await reward.score(node, evidence))
    except Exception as error:  # noqa: BLE001 - every failure is a cause, not a score
        if scope.expired():
            return _no_verdict(f"reward {reward.name!r} ran over the verify deadline")
        if isinstance(error, ExceptionGroup):
            error = classify(cast("Exception", error), "reward")
        kind = type(error).__name__
        cause = blame(error, inside="unknown")
        passes = isinstance(error, BenchFlowError) and error.retryable
        return VerifyResult.unscored(
            f"{kind}: {error}",
            error_type=kind,
            retryable=(passes or cause.is_temporary) and not cause.stops_job,
            cause=cause,
        )
    if not isinstance(result, VerifyResult):
        return _no_verdict(f"reward {reward.name!r} returned {type(result).__name__}")
    return result


def _no_verdict(reason: str) -> VerifyResult:
    return VerifyResult.unscored(reason, cause=Cause(by="unknown", what=reason))


def is_ungraded(tree: RolloutTree) -> bool:
    """Return whether leaves were graded, and none has a verdict.

    A verdict that does not count, or has nothing to reward, is also a verdict.
    """
    verdicts = [leaf.results["reward"] for leaf in tree.leaves if "reward" in leaf.results]
    scored = (v.reward is not None or v.error_type == NO_REWARDS for v in verdicts)
    return bool(verdicts) and not any(scored)


def score_lowest(journal: Journal, task: Task, node: str, cause: Cause) -> None:
    """Score a node whose agent prevented its grading with the lowest reward of the task."""
    low, _ = task.config.verifier.reward_range
    result = VerifyResult(reward=low, cause=cause)
    journal.append(NodeScored, node=node, name="reward", result=result)
