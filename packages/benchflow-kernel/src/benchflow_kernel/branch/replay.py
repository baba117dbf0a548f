"""Replay a branch up to the fork: the same questions, with the recorded answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchflow_contracts import Answer, Ask, PendingCall, SnapshotError

from .checkpoint import Checkpoint, CheckpointRefs

_HINT = "replay needs an agent that repeats itself, or a gateway that records its model calls"


@dataclass(frozen=True, slots=True)
class Exchange:
    """An Ask of one turn, and its answer."""

    turn: int
    ask: Ask
    answer: Answer | None
    """`None` if the Ask was open at the fork; then the child's user answers."""


class Replay:
    """Answers a child's questions from the record until the fork is reached.

    A child may only continue after exactly the same questions. After another question the
    agent has diverged, and its return is not a sample of the state of the fork. `since` is
    the child's first turn. `until` is the turn of a fork at a turn boundary; a fork at a
    question is reached when the `script` ends, and a fork at the model call `call` when the call
    is made.
    """

    def __init__(
        self,
        script: Sequence[Exchange] = (),
        *,
        since: int = 0,
        until: int = 0,
        call: PendingCall | None = None,
    ) -> None:
        self._script = tuple(script)
        self._next = 0
        self._turn = since
        self._until = until
        self._call = call

    @property
    def is_finished(self) -> bool:
        """Whether the fork is reached. From here the child continues without the record."""
        is_past = self._next == len(self._script) and self._turn >= self._until
        return is_past and self._call is None

    @property
    def awaits_call(self) -> bool:
        """Whether a model call is the fork, and the child has not made the call."""
        return self._call is not None

    def reach_call(self, call: PendingCall) -> None:
        """Note that the child makes the first model call that the record does not answer.

        The numbers may differ, because an agent need not repeat calls beside its work.

        Raises:
            SnapshotError: The child diverged: its request, its questions or its turn differ.
        """
        forked = self._call
        assert forked is not None, "the replay ends at a call"
        is_there = self._next == len(self._script) and self._turn >= self._until
        if call.digest != forked.digest or not is_there:
            raise SnapshotError(
                f"the child diverged: its model call {call.number} is not its parent's call"
                f" {forked.number}",
                hint=_HINT,
            )
        self._call = None

    def take(self, turn: int, ask: Ask) -> Answer | None:
        """Return the recorded answer, with the ids of this `ask`.

        Raises:
            SnapshotError: The child diverged.
        """
        if self._next == len(self._script):
            raise SnapshotError(
                f"the child diverged: it asked {ask.questions[0].text!r}, which its parent did not",
                hint=_HINT,
            )
        recorded = self._script[self._next]
        if recorded.turn != turn or _comparable(recorded.ask) != _comparable(ask):
            raise _divergence(f"it asked {ask.questions[0].text!r}", recorded)
        self._next += 1
        return None if recorded.answer is None else _translate(recorded, ask)

    def end_turn(self, turn: int) -> None:
        """Check the record at the end of `turn`.

        Raises:
            SnapshotError: The child diverged: a recorded question did not come.
        """
        if self._next < len(self._script) and self._script[self._next].turn <= turn:
            raise _divergence("it ended its turn", self._script[self._next])
        if self._call is not None and turn >= self._until:
            raise SnapshotError(
                f"the child diverged: it ended its turn where its parent made model call"
                f" {self._call.number}",
                hint=_HINT,
            )
        self._turn = turn + 1


class ReplayLog:
    """The last checkpoint of a branch, with the questions and model calls since then."""

    def __init__(self, base: Checkpoint | None, refs: CheckpointRefs, *, answered: int = 0) -> None:
        self._refs = refs
        self._own: Checkpoint | None = None
        self._exchanges: list[Exchange] = []
        self.calls_before = 0
        """The number of model calls of the branch at the base checkpoint."""
        self.answered_before = answered
        """The answered calls of the agent's work on the path to the base checkpoint."""
        self.base_checkpoint = base

    def append(self, exchange: Exchange) -> int:
        """Add a question, answered or open; return its place for `set_answer`."""
        self._exchanges.append(exchange)
        return len(self._exchanges) - 1

    def set_answer(self, place: int, answer: Answer) -> None:
        """Add the answer to the question at `place`."""
        self._exchanges[place] = replace(self._exchanges[place], answer=answer)

    async def rebase(self, base: Checkpoint, calls: int, answered: int) -> None:
        """Use `base` as the new start, after `calls` model calls of the branch.

        `answered` are the answered calls of the agent's work on the path.
        """
        old, self._own = self._own, base
        self.base_checkpoint = base
        self._refs.acquire(base)
        self._exchanges.clear()
        self.calls_before, self.answered_before = calls, answered
        await self._refs.release(old)

    @property
    def script(self) -> tuple[Exchange, ...]:
        """The exchanges since the base checkpoint."""
        return tuple(self._exchanges)

    async def aclose(self) -> None:
        """Release the branch's own checkpoint. Idempotent."""
        owned, self._own = self._own, None
        await self._refs.release(owned)


def _comparable(ask: Ask) -> object:
    """Return the parts that must be equal. Ids of asks and questions may differ."""
    return ask.kind, [
        (question.text, [option.id for option in question.options]) for question in ask.questions
    ]


def _translate(recorded: Exchange, ask: Ask) -> Answer:
    answer = recorded.answer
    assert answer is not None
    pairs = zip(recorded.ask.questions, ask.questions, strict=True)
    ids = {old.id: new.id for old, new in pairs}
    return Answer(
        outcome=answer.outcome,
        selected={ids[old]: chosen for old, chosen in answer.selected.items()},
        text={ids[old]: text for old, text in answer.text.items()},
    )


def _divergence(instead: str, recorded: Exchange) -> SnapshotError:
    return SnapshotError(
        f"the child diverged: {instead} where its parent asked {recorded.ask.questions[0].text!r}",
        hint=_HINT,
    )
