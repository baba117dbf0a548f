"""Where a line of the rollout begins."""

from dataclasses import dataclass

from benchflow_contracts import BranchPolicy, ModelCall

from benchflow_kernel.branch import Checkpoint, Exchange
from benchflow_kernel.scenes import LoweredTurn


@dataclass(frozen=True, slots=True)
class Position:
    """A state of the rollout, and what it takes to come back to it."""

    node: str
    """The node of the tree that it is."""
    turn: int
    """The turn that comes next, or that runs while a question is open."""
    schedule: tuple[LoweredTurn, ...]
    """The declared turns and the nudges that were sent so far."""
    checkpoint: Checkpoint | None = None
    """`None` is the task's own beginning."""
    script: tuple[Exchange, ...] = ()
    """What is asked and answered between the checkpoint and here; an open question is last."""
    calls: tuple[ModelCall, ...] = ()
    """The recorded model calls between the checkpoint and here."""


@dataclass(frozen=True, slots=True)
class BranchStart:
    """Where a line begins: the rollout's root, a child of a fork, or a restored winner."""

    id: str
    """The world's own id; its first step's node, unless it is the root's."""
    position: Position
    label: str | None = None
    """What tells a child from its siblings."""
    policy: BranchPolicy | None = None
    """How this line forks in turn."""
    depth: int = 0
    """Forks of `policy` above."""
    stop: int | None = None
    """The turn before which the line ends to be compared with its siblings."""
    main: bool = False
    """Whether the rollout fails when this line does."""
    resumed: bool = False
    """Whether it only goes on from where another line ended: a winner that was restored."""

    @property
    def node(self) -> str:
        """The node below which its steps are hung."""
        return self.position.node

    @property
    def checkpoint(self) -> Checkpoint | None:
        """What its world is made from; `None` for one from the task."""
        return self.position.checkpoint
