"""Where branches start: a position, a fork of it, and the branches from that fork."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from benchflow_contracts import (
    Answer,
    Ask,
    BranchRecord,
    Fidelity,
    ModelCall,
    PendingCall,
)

from benchflow_kernel.branch import Checkpoint, Exchange, children_of, labels_of
from benchflow_kernel.config import AskUserBranch, BranchPolicy, CallerBranch
from benchflow_kernel.resolve import LoweredTurn


@dataclass(frozen=True, slots=True)
class Position:
    """A state of the rollout, with everything that a branch needs to return there."""

    node: str
    """The node of the tree."""
    turn: int
    """The turn that comes next, or that runs at a question or at a model call."""
    schedule: tuple[LoweredTurn, ...]
    """The declared turns and the nudges so far."""
    checkpoint: Checkpoint | None = None
    """`None` is the start of the task."""
    script: tuple[Exchange, ...] = ()
    """Questions and answers since the checkpoint. An open question is the last."""
    calls: tuple[ModelCall, ...] = ()
    """The recorded model calls since the checkpoint."""
    calls_before: int = 0
    """The answered calls of the agent's work on the path to the checkpoint."""
    call: PendingCall | None = None
    """The model call that comes next, if the position is at one, with its number on the path. A
    replay from the checkpoint ends there."""
    ended: bool = False
    """Whether the agents have ended. The branch is then only graded."""
    ungraded_step: int | None = None
    """The step of the task to grade, if the agents have ended."""


@dataclass(frozen=True, slots=True)
class BranchStart:
    """The start of a branch: the rollout's root, a child of a fork, or a restored winner."""

    id: str
    """The id of the world. Except at the root, the first step's node has the same id."""
    position: Position
    label: str | None = None
    """Distinguishes a child from its siblings."""
    policy: BranchPolicy | None = None
    """How this branch forks."""
    depth: int = 0
    """How many forks of `policy` are above."""
    stop: int | None = None
    """The turn before which the branch ends, to be compared with its siblings."""
    main: bool = False
    """Whether the rollout fails if this branch fails."""
    resumed: bool = False
    """Whether the branch continues another branch that ended, such as a restored winner."""

    @property
    def node(self) -> str:
        """The node below which the branch's steps are added."""
        return self.position.node

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The source of the branch's world; `None` is the task."""
        return self.position.checkpoint


@dataclass(frozen=True, slots=True)
class Fork:
    """A state from which several branches start, with the policy and the fidelity."""

    position: Position
    policy: BranchPolicy
    depth: int
    """How many forks of this policy are above."""
    fidelity: Fidelity
    reason: str
    ask: Ask | None = None
    """The open question, if there is one."""
    answers: Mapping[str, float] | None = None
    """The probability of each option of `ask` by its id, if the user was asked."""
    main: bool = False
    """Whether the main branch of the rollout was forked."""

    @property
    def node(self) -> str:
        """The node that is forked."""
        return self.position.node

    @property
    def record(self) -> BranchRecord:
        """The fork as the tree records it."""
        return BranchRecord(
            policy=self.policy.kind,
            fidelity=self.fidelity,
            reason=self.reason,
            children=children_of(self.policy, self.ask),
            answers=self._answers_by_label(),
            call=None if self.position.call is None else self.position.call.number,
        )

    def children(self, new_id: Callable[[], str]) -> list[BranchStart]:
        """Return the start of each child."""
        labels = labels_of(self.policy, self.ask)
        return [self._child(index, label, new_id()) for index, label in enumerate(labels)]

    def _answers_by_label(self) -> dict[str, float] | None:
        if self.ask is None or self.answers is None:
            return None
        options = self.ask.questions[0].options
        labels = labels_of(self.policy, self.ask)
        return {
            label: self.answers.get(option.id, 0.0)
            for label, option in zip(labels, options, strict=True)
        }

    def winner(self, node_id: str, end: Position) -> BranchStart:
        """Return the start of the branch that continues the best child."""
        then = self.policy.then
        return BranchStart(
            id=node_id,
            position=end,
            policy=then or self.policy,
            depth=self.depth + 1 if then is None else 0,
            main=self.main,
            resumed=True,
        )

    def _child(self, index: int, label: str, node_id: str) -> BranchStart:
        is_compared = self.policy.kind == "best-of"
        then = self.policy.then
        return BranchStart(
            id=node_id,
            position=self._child_position(index),
            label=label,
            policy=None if is_compared else then or self.policy,
            depth=self.depth + 1 if then is None else 0,
            stop=self.position.turn + 1 if is_compared else None,
        )

    def _child_position(self, index: int) -> Position:
        """Return the position with the child's own answer to the open question.

        Under another policy, the question stays open, and the child's own user answers.
        """
        if self.ask is None or not isinstance(self.policy, AskUserBranch | CallerBranch):
            return self.position
        option = self.ask.questions[0].options[index]
        exchange = replace(self.position.script[-1], answer=Answer.choose(self.ask, option.id))
        return replace(self.position, script=(*self.position.script[:-1], exchange))
