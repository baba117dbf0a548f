"""Where a line of the rollout begins, and what a fork leaves behind."""

from dataclasses import dataclass

from benchflow_contracts import Answer, Ask

from benchflow_kernel.branch import Checkpoint, Exchange
from benchflow_kernel.scenes import LoweredTurn


@dataclass(frozen=True, slots=True)
class Start:
    """Where a line begins: the root of the rollout, or an option of a fork."""

    node: str
    """The root; or for a child the fork, below which its steps are hung."""
    id: str
    """The world's own id: the root's node, or the child's first node."""
    schedule: tuple[LoweredTurn, ...]
    """The declared turns and the nudges that were sent so far."""
    label: str | None = None
    checkpoint: Checkpoint | None = None
    script: tuple[Exchange, ...] = ()
    """What a child answers until it is past the fork; the fork's own answer is last."""
    depth: int = 0
    """Forks above."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A question at which a line ended, so that its children go on."""

    node: str
    ask: Ask
    turn: int
    checkpoint: Checkpoint
    schedule: tuple[LoweredTurn, ...]
    exchanges: tuple[Exchange, ...]
    """Since the checkpoint, without the fork's own."""
    depth: int

    @property
    def labels(self) -> list[str]:
        """One label per option, all distinct."""
        options = self.ask.questions[0].options
        plain = [option.label or option.id for option in options]
        return [
            label if plain.count(label) == 1 else f"{label} ({option.id})"
            for label, option in zip(plain, options, strict=True)
        ]

    def child(self, index: int, node_id: str) -> Start:
        """Return where the child of option `index` begins."""
        option = self.ask.questions[0].options[index]
        answer = Answer.choose(self.ask, option.id)
        return Start(
            node=self.node,
            id=node_id,
            schedule=self.schedule,
            label=self.labels[index],
            checkpoint=self.checkpoint,
            script=(*self.exchanges, Exchange(turn=self.turn, ask=self.ask, answer=answer)),
            depth=self.depth + 1,
        )
