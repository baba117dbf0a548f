"""What a grader needs of the live world, checked once."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    EnvState,
    NodeState,
    RewardError,
    RolloutNode,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Task,
)


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node whose world is still there, with the parts that grading needs."""

    node: RolloutNode
    task: Task
    provider: SandboxProvider
    sandbox: Sandbox
    grading_spec: SandboxSpec
    env_state: EnvState | None
    log_dir: Path | None
    labels: Mapping[str, str]
    """Of a sandbox that is made for grading."""
    artifacts_dir: Path | None
    goes_on: bool
    plays_solution: bool
    before_tests: Callable[[], Awaitable[None]] | None

    async def ready_for_tests(self) -> None:
        """Let tests that run in the agent's own box reach what they may."""
        if self.before_tests is not None:
            await self.before_tests()


def state_of(node: RolloutNode, reward: str) -> NodeState:
    """Return the node's state, or raise `RewardError` naming the reward."""
    if node.state is None:
        raise RewardError(
            f"{reward!r} cannot score node {node.id!r}: its world is not attached",
            hint="score the node before the rollout's teardown",
        )
    return node.state


def sandbox_of(node: RolloutNode, reward: str) -> Sandbox:
    """Return the live box, or raise `RewardError` naming the reward."""
    sandbox = state_of(node, reward).sandbox
    if sandbox is None:
        raise RewardError(
            f"{reward!r} cannot score node {node.id!r}: there is no live sandbox",
            hint="score the node before the rollout's teardown",
        )
    return sandbox


def live_node(node: RolloutNode, reward: str) -> LiveNode:
    """Return all that a script verifier needs, or raise `RewardError`."""
    state = state_of(node, reward)
    sandbox = sandbox_of(node, reward)
    if state.provider is None or state.grading_spec is None:
        raise RewardError(
            f"{reward!r} cannot score node {node.id!r}: no provider makes a grading box",
            hint="give NodeState both provider and grading_spec",
        )
    return LiveNode(
        node=node,
        task=state.task,
        provider=state.provider,
        sandbox=sandbox,
        grading_spec=state.grading_spec,
        env_state=state.env_state or node.env_state,
        log_dir=state.log_dir,
        labels=state.labels,
        artifacts_dir=state.artifacts_dir,
        goes_on=state.goes_on,
        plays_solution=state.plays_solution,
        before_tests=state.before_tests,
    )
