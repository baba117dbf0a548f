"""The Reward plane: rewards, and the evidence that they use to score a node."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from .environment import Environment
from .errors import EvidenceMissingError
from .identity import RolloutIdentity
from .judge import JudgeModel
from .sandbox import Sandbox, SandboxProvider, SandboxSpec
from .task import Task
from .tree import RolloutNode
from .verdict import VerifyResult


@dataclass(frozen=True, slots=True)
class LiveWorld:
    """The agent's sandbox after its work, and what a reward may do with it.

    When `score` is called, the agent's process group is dead, and only the environment's services
    run in `sandbox`. A hermetic grader copies the files that it needs inside `sandbox.freeze()`,
    calls `sandbox.teardown()`, and then grades in a new sandbox of `provider`.
    """

    sandbox: Sandbox
    provider: SandboxProvider
    grading_spec: SandboxSpec
    """The spec of a fresh grading sandbox: the task's image, no model, the verifier's network."""
    environment: Environment | None = None
    continues: bool = False
    """Whether the rollout continues in this sandbox. The reward must then leave it running and
    unchanged, except for the changes of `shared` grading. Set between the steps of a task."""
    before_tests: Callable[[], Awaitable[None]] | None = None
    """Await this before tests run in `sandbox` itself. It gives `sandbox` the verifier's network.
    If that network reaches more than the agent's, it first ends every process inside."""
    identity: RolloutIdentity = field(default_factory=RolloutIdentity)
    """The identity of the sandboxes that are created for grading."""
    may_end_processes: bool = False
    """Whether a reward may end the processes of `sandbox` to read its files, if `sandbox` cannot be
    frozen. No later reward and no next step needs them then."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a reward may use in addition to the node.

    `Evidence()`, without a task and a world, belongs to a node that was recorded elsewhere, such as
    a production trace. Evidence with a task and without a world belongs to a finished rollout.
    """

    task: Task | None = None
    world: LiveWorld | None = None
    plays_solution: bool = False
    """Whether the agent ran the task's own solution. Every task must give it the reward 1."""
    log_dir: Path | None = None
    """A host directory for the verifier's output and reward files. Its writer creates it."""
    read_messages: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Reads the conversation from the recorded model calls; `None` without a gateway before the
    agent. Use `messages` or `require_messages`."""
    judge: JudgeModel | None = None
    """The model of the configuration's `[judge]` table. Its calls are recorded by the gateway."""

    @property
    def artifacts_dir(self) -> Path | None:
        """The host directory of the task's artifacts, beside `log_dir`. Its writer creates it."""
        return None if self.log_dir is None else self.log_dir.with_name("artifacts")

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation as the model saw it: messages of Chat Completions.

        They are those of the last answered call of the agent's work in this branch, with the system
        prompt and its answer, whatever agent made the call. Empty without such a call. They are
        read at each use.

        Raises:
            EvidenceMissingError: Chat Completions cannot express them.
        """
        return () if self.read_messages is None else self.read_messages()

    def require_messages(self, reward: str) -> Sequence[Mapping[str, Any]]:
        """Return the conversation for the reward named `reward`.

        Raises:
            EvidenceMissingError: No call of the branch was recorded, or as `messages`.
        """
        if not (found := self.messages):
            raise EvidenceMissingError(
                f"{reward!r} needs the messages of the model, and no call was recorded",
                hint="use an agent that acts through a model, with --base-url and without"
                " --no-gateway",
            )
        return found

    def require_task(self, reward: str) -> Task:
        """Return the task for the reward named `reward`.

        Raises:
            EvidenceMissingError: The evidence does not have a task.
        """
        if self.task is None:
            raise EvidenceMissingError(
                f"{reward!r} needs the task, and the evidence does not have it",
                hint="score the node of a rollout of a task",
            )
        return self.task

    def require_world(self, reward: str) -> LiveWorld:
        """Return the live world for the reward named `reward`.

        Raises:
            EvidenceMissingError: The world is gone, or never ran here.
        """
        if self.world is None:
            raise EvidenceMissingError(
                f"{reward!r} needs a live world, and the evidence does not have it",
                hint="score the node before the rollout's teardown",
            )
        return self.world

    def require_judge(self, reward: str) -> JudgeModel:
        """Return the judge's model for the reward named `reward`.

        Raises:
            EvidenceMissingError: The configuration does not name a judge.
        """
        if self.judge is None:
            raise EvidenceMissingError(
                f"{reward!r} asks a model, and no judge was configured",
                hint="give --judge-url URL and --judge-model NAME",
            )
        return self.judge


class Reward(Protocol):
    """Scores a node of the tree.

    A reward may set an attribute `needs_processes` (default: True). If it is False, the reward does
    not use the processes in the sandbox, so an earlier reward may end them.

    A reward may set an attribute `stops_processes` (default: False). If it is True, the reward
    reads files of the sandbox while no process runs: it freezes the sandbox, or ends its
    processes if the sandbox cannot be frozen.
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


class GroupReward(Protocol):
    """Scores the leaves of several rollouts of one task together, such as by comparison.

    A member without a verdict, such as a failed rollout, is lost: the reward does not see it, and
    the record names it. A reward may set an attribute `needs_all_members` (default: False). If it
    is True and a member is lost, the reward is not asked, and no leaf has this verdict.
    """

    @property
    def name(self) -> str:
        """The key of its verdicts in `RolloutNode.results`. `reward` replaces the return."""
        ...

    async def score_group(
        self, task: Task, leaves: Sequence[RolloutNode]
    ) -> Sequence[VerifyResult]:
        """Return one verdict for each leaf, in order.

        The rollouts have ended, and their sandboxes are gone. `RolloutNode.steps` has what the
        agent did, and `results` the verdicts so far.

        Raises:
            RewardError: The leaves cannot be compared. No leaf then has this verdict.
        """
        ...


@runtime_checkable
class SupportsJudge(Protocol):
    """A `GroupReward` that may ask the judge's model of the configuration."""

    def with_judge(self, judge: JudgeModel) -> GroupReward:
        """Return the reward with the model, for one group. See `JudgeModel`."""
        ...


def needs_all_members(reward: GroupReward) -> bool:
    """Return whether `reward` scores only groups without a lost member."""
    return bool(getattr(reward, "needs_all_members", False))


def needs_processes(reward: Reward) -> bool:
    """Return whether the processes of the sandbox must run until `reward` has scored."""
    return bool(getattr(reward, "needs_processes", True))


def stops_processes(reward: Reward) -> bool:
    """Return whether `reward` freezes the sandbox, or ends its processes, to read its files."""
    return bool(getattr(reward, "stops_processes", False))
