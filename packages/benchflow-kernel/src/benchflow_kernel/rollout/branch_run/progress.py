"""The place of one branch: its turn, its last node and its state."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from benchflow_contracts import BenchFlowError, ModelCall

from benchflow_kernel.resolve import LoweredTurn, Plan
from benchflow_kernel.rollout.branch_start import BranchStart, Fork
from benchflow_kernel.rollout.record import Journal
from benchflow_kernel.world import World


@dataclass(frozen=True, slots=True)
class BranchContext:
    """The shared objects of one branch run."""

    plan: Plan
    journal: Journal
    world: World
    start: BranchStart


class BranchState(Enum):
    """The state of a branch within the current step of its task."""

    READY = auto()
    """No turn of the step has begun."""
    PROMPTING = auto()
    """An agent runs a turn."""
    IDLE = auto()
    """The last turn has ended, and the step is not graded."""
    REPLAYED = auto()
    """The last turn repeated a recorded one. The recorded verdict on the step holds."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A state of the branch at which it may fork."""

    node: str
    turn: int
    schedule: tuple[LoweredTurn, ...]
    calls: int = 0
    """The answered model calls of the agent's work on the path to this state."""


class Progress:
    """The turns, the last node and the state of one branch."""

    def __init__(self, start: BranchStart, answered: Callable[[], int] = int) -> None:
        """`answered` returns the answered calls of the agent's work in this world."""
        checkpoint = start.checkpoint
        self.calls_before = start.position.calls_before
        """The answered calls of the agent's work on the path to this world."""
        self._answered = answered
        self.schedule = start.position.schedule
        self.turn = 0 if checkpoint is None else checkpoint.turn
        """The index of the turn that runs, or that comes next."""
        self.current = self.schedule[min(self.turn, len(self.schedule) - 1)]
        """The turn that runs; between two turns, the last one."""
        self.tip = start.node
        """The node of the last step."""
        self.state = BranchState.READY
        self.has_acted = False
        """Whether an agent received a prompt in this world."""

    @property
    def cursor(self) -> Cursor:
        """The branch's place in the tree and in its schedule."""
        calls = self.calls_before + self._answered()
        return Cursor(self.tip, self.turn, self.schedule, calls)

    @property
    def has_turns(self) -> bool:
        """Whether the schedule has a turn left."""
        return self.turn < len(self.schedule)

    @property
    def task_step(self) -> int:
        """The step of the task that runs, or that comes next."""
        return self.current.task_step

    @property
    def ungraded_step(self) -> int | None:
        """The step of the task that this branch has run and not graded, if there is one."""
        return None if self.state is BranchState.READY else self.task_step

    def next_step_turn(self, stop: int | None) -> int | None:
        """Return the first turn of the task's next step, or `None` if `stop` comes before it."""
        step = self.task_step
        later = (at for at, turn in enumerate(self.schedule) if turn.task_step > step)
        following = next(later, None)
        if following is not None and stop is not None and self.turn < following:
            return None
        return following

    def go_to(self, turn: int) -> None:
        """Make `turn` the current turn."""
        self.turn = turn
        self.current = self.schedule[turn]

    def end(self) -> None:
        """Leave out the rest of the schedule."""
        self.turn = len(self.schedule)

    def add_prompt(self, prompt: str) -> None:
        """Append a turn of the current scene and role."""
        turn = LoweredTurn(scene=self.current.scene, role=self.current.role, prompt=prompt)
        self.schedule = (*self.schedule, turn)


class Interruption:
    """Ends the running prompt from within a callback of its session."""

    def __init__(self) -> None:
        self.reason: Fork | BenchFlowError | None = None
        """Why the branch ended. It is set once."""
        self._scope = asyncio.timeout(None)

    def new_scope(self) -> asyncio.Timeout:
        """Return the scope of the next prompt; `interrupt` makes it raise `TimeoutError`."""
        self._scope = asyncio.timeout(None)
        return self._scope

    def interrupt(self, reason: Fork | BenchFlowError) -> None:
        """Cancel the running prompt. Only the first reason counts."""
        if self.reason is None:
            self.reason = reason
            self._scope.reschedule(asyncio.get_running_loop().time())


def count_answered(calls: Sequence[ModelCall]) -> int:
    """Return the number of answered model calls of the agent's work, replayed ones too."""
    answered = (call.purpose == "main" and call.status == 200 and not call.error for call in calls)
    return sum(answered)
