"""A Fork: a state from which several lines go on."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchflow_contracts import Answer, Ask, AskUserBranch, BranchPolicy, BranchRecord, Fidelity

from benchflow_kernel.branch import children_of, labels_of

from .branch_start import BranchStart, Position


@dataclass(frozen=True, slots=True)
class Fork:
    """A state, the policy that forks it, and how well it was captured."""

    position: Position
    policy: BranchPolicy
    depth: int
    """Forks of this policy above."""
    fidelity: Fidelity
    reason: str
    ask: Ask | None = None
    """The open question, when it is one."""
    main: bool = False
    """Whether it was the rollout's main line that forked."""

    @property
    def node(self) -> str:
        """The node that is forked."""
        return self.position.node

    @property
    def record(self) -> BranchRecord:
        """What the tree says about it."""
        return BranchRecord(
            policy=self.policy.kind,
            fidelity=self.fidelity,
            reason=self.reason,
            children=children_of(self.policy, self.ask),
        )

    def children(self, new_id: Callable[[], str]) -> list[BranchStart]:
        """Return where each child begins."""
        labels = labels_of(self.policy, self.ask)
        return [self._child(index, label, new_id()) for index, label in enumerate(labels)]

    def _child(self, index: int, label: str, node_id: str) -> BranchStart:
        compared = self.policy.kind == "best-of"
        then = self.policy.then
        return BranchStart(
            id=node_id,
            position=self._answered(index),
            label=label,
            policy=None if compared else then or self.policy,
            depth=self.depth + 1 if then is None else 0,
            stop=self.position.turn + 1 if compared else None,
        )

    def _answered(self, index: int) -> Position:
        """Return the position with a child's own answer to the open question.

        Children of other policies leave it open, for their own users.
        """
        if self.ask is None or not isinstance(self.policy, AskUserBranch):
            return self.position
        option = self.ask.questions[0].options[index]
        own = replace(self.position.script[-1], answer=Answer.choose(self.ask, option.id))
        return replace(self.position, script=(*self.position.script[:-1], own))

    def winner(self, node_id: str, sealed: Position) -> BranchStart:
        """Return where the best child goes on."""
        then = self.policy.then
        return BranchStart(
            id=node_id,
            position=sealed,
            policy=then or self.policy,
            depth=self.depth + 1 if then is None else 0,
            main=self.main,
            resumed=True,
        )
