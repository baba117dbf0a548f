"""What a script verifier needs of the live world."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import (
    EnvState,
    Evidence,
    LiveWorld,
    RolloutNode,
    Sandbox,
    SandboxProvider,
    SandboxSpec,
    Task,
)


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node, its task and its live world."""

    node: RolloutNode
    task: Task
    world: LiveWorld
    plays_solution: bool
    log_dir: Path | None
    artifacts_dir: Path | None

    @classmethod
    def of(cls, node: RolloutNode, evidence: Evidence, reward: str) -> "LiveNode":
        """Return what the reward of that name needs.

        Raises:
            EvidenceMissingError: There is no live world, or no task.
        """
        return cls(
            node=node,
            task=evidence.require_task(reward),
            world=evidence.require_world(reward),
            plays_solution=evidence.plays_solution,
            log_dir=evidence.log_dir,
            artifacts_dir=evidence.artifacts_dir,
        )

    @property
    def sandbox(self) -> Sandbox:
        """The agent's sandbox."""
        return self.world.sandbox

    @property
    def provider(self) -> SandboxProvider:
        """The provider that makes grading sandboxes."""
        return self.world.provider

    @property
    def grading_spec(self) -> SandboxSpec:
        """The spec of a grading sandbox."""
        return self.world.grading_spec

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of a grading sandbox."""
        return self.world.labels

    @property
    def env_state(self) -> EnvState | None:
        """The final state of the environment."""
        return self.node.env_state

    @property
    def continues(self) -> bool:
        """Whether the rollout continues in the agent's sandbox."""
        return self.world.continues

    async def ready_for_tests(self) -> None:
        """Let tests that run in the agent's own sandbox reach what the verifier may reach."""
        if self.world.before_tests is not None:
            await self.world.before_tests()
