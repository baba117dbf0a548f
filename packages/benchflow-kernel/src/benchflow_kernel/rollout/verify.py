"""Scoring: after the agent is dead, before the world is gone."""

import asyncio
from typing import cast

from benchflow_contracts import (
    NodeScored,
    NodeState,
    Reward,
    RolloutNode,
    StateCaptured,
    VerifyResult,
)

from benchflow_kernel.world import Plan, World
from benchflow_kernel.world.labels import labels_of

from .journal import Journal


async def verify(plan: Plan, journal: Journal, world: World, leaf: str) -> None:
    """Score the node `leaf` with every reward, in turn. The agents have been ended.

    A reward that fails, returns nothing usable or is late leaves an unscored result
    that says so; the other ones are asked all the same. No fault becomes a number.

    Raises:
        EnvironmentError_: The final state cannot be read; nothing is scored.
    """
    state = await world.query() if plan.config.capture_state else None
    if state is not None:
        journal.append(StateCaptured, node=leaf, state=state)
    node = journal.node(leaf)
    node.state = _node_state(plan, world, node)
    deadline = asyncio.get_running_loop().time() + plan.config.deadlines.verify
    try:
        for reward in plan.planes.rewards:
            result = await _score(reward, node, deadline)
            journal.append(NodeScored, node=leaf, name=reward.name, result=result)
    finally:
        node.state = None


def _node_state(plan: Plan, world: World, node: RolloutNode) -> NodeState:
    return NodeState(
        task=plan.task,
        provider=plan.planes.provider,
        sandbox=world.sandbox,
        grading_spec=world.grading_spec,
        environment=world.environment,
        env_state=node.env_state,
        log_dir=world.verifier_dir,
        labels=labels_of(plan, node.id),
    )


async def _score(reward: Reward, node: RolloutNode, deadline: float) -> VerifyResult:
    scope = asyncio.timeout_at(deadline)
    try:
        async with scope:
            result = cast("object", await reward.score(node))
    except Exception as error:  # noqa: BLE001 - whatever it is: a cause, not a number
        if scope.expired():
            return VerifyResult.unscored(f"reward {reward.name!r} ran over the verify deadline")
        kind = type(error).__name__
        return VerifyResult.unscored(f"{kind}: {error}", error_type=kind)
    if not isinstance(result, VerifyResult):
        return VerifyResult.unscored(f"reward {reward.name!r} returned {type(result).__name__}")
    return result
