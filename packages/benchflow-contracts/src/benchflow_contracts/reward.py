"""The Reward plane: how a node is scored, and by what evidence."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from .environment import Environment
from .errors import EvidenceMissingError
from .identity import RolloutIdentity
from .sandbox import Sandbox, SandboxProvider, SandboxSpec
from .task import Task
from .tree import RolloutNode
from .verdict import VerifyResult


@dataclass(frozen=True, slots=True)
class LiveWorld:
    """The world that the agent left, and what a reward may do with it.

    When `score` is called, the agent's process group is dead, and only the environment's services
    run in `sandbox`.

    A hermetic grader copies what it needs under `sandbox.freeze()`, calls `sandbox.teardown()`
    and only then grades in a sandbox of its own from `provider`.
    """

    sandbox: Sandbox
    provider: SandboxProvider
    grading_spec: SandboxSpec
    """The spec of a fresh grading sandbox: the task's image, no model, the verifier's network."""
    environment: Environment | None = None
    continues: bool = False
    """The rollout continues in this sandbox, so the reward must leave it running and unchanged,
    except for the changes of `shared` grading. Set between the steps of a task of several."""
    before_tests: Callable[[], Awaitable[None]] | None = None
    """Awaited before tests run in `sandbox` itself: it then reaches what the verifier may reach.
    If that is more than before, everything that ran inside is ended first."""
    identity: RolloutIdentity = field(default_factory=RolloutIdentity)
    """That of the sandboxes that are made for grading."""
    may_end_processes: bool = False
    """No later reward, and no next step, needs the processes of `sandbox`. A reward that must read
    files at rest may end them, where `sandbox` cannot be frozen."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a reward may use beside the node.

    `Evidence()` belongs to a node that was recorded elsewhere, such as a production trace: it has
    no task and no live world. Evidence with a task and without a world belongs to a finished
    rollout.
    """

    task: Task | None = None
    world: LiveWorld | None = None
    plays_solution: bool = False
    """Whether the agent ran the task's own solution, which every task must give a 1."""
    log_dir: Path | None = None
    """A host directory for the verifier's output and reward files. Its writer creates it."""

    @property
    def artifacts_dir(self) -> Path | None:
        """The host directory of the task's artifacts, beside `log_dir`. Its writer creates it."""
        return None if self.log_dir is None else self.log_dir.with_name("artifacts")

    def require_task(self, reward: str) -> Task:
        """Return the task, which the reward of that name needs.

        Raises:
            EvidenceMissingError: There is no task.
        """
        if self.task is None:
            raise EvidenceMissingError(
                f"{reward!r} needs the task, and the evidence has none",
                hint="score the node of a rollout of a task",
            )
        return self.task

    def require_world(self, reward: str) -> LiveWorld:
        """Return the live world, which the reward of that name needs.

        Raises:
            EvidenceMissingError: The world is gone, or never ran here.
        """
        if self.world is None:
            raise EvidenceMissingError(
                f"{reward!r} needs a live world, and the evidence has none",
                hint="score the node before the rollout's teardown",
            )
        return self.world


class Reward(Protocol):
    """Scores a node of the tree.

    A reward may have an attribute `needs_processes`. If it is False, the reward does not use the
    processes in the sandbox: a reward before it may end them. Without the attribute it is True.
    """

    @property
    def name(self) -> str:
        """The key of its verdict in `RolloutNode.results`."""
        ...

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Return the verdict.

        A reward that reads only the node ignores `evidence`.

        Raises:
            EvidenceMissingError: The reward needs evidence that is missing.
            RewardError: Scoring failed. The node then has no reward, as by
                `VerifyResult.unscored`.
        """
        ...


def needs_processes(reward: Reward) -> bool:
    """Return whether the processes of the sandbox must run until `reward` has scored."""
    return bool(getattr(reward, "needs_processes", True))
