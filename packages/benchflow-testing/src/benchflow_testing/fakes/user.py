"""A user with scripted answers."""

from collections.abc import Callable, Mapping, Sequence

from benchflow_contracts.ask import Answer, Ask
from benchflow_contracts.step import Step

from .faults import FakeFaults, Fault

AnswerRule = Callable[[Ask], Answer]


class FakeUserModel:
    """Answers by a rule, or with each question's first option; nudges from a list.

    A question without options gets `text` when it takes free text; else the whole
    Ask is declined. `probabilities` has those of the options of every question that is forked, by
    option id; by default the user cannot say them. Faults are keyed by `answer` and `nudge`.
    """

    def __init__(
        self,
        answer: AnswerRule | None = None,
        *,
        nudges: Sequence[str] = (),
        text: str = "as you like",
        probabilities: Mapping[str, float] | None = None,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.asked: list[Ask] = []
        self.seen: list[Step] = []
        """The steps of the last call."""
        self.closed = False
        self._answer = answer
        self._nudges = list(nudges)
        self._text = text
        self._probabilities = probabilities

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Answer `ask`."""
        self.asked.append(ask)
        self.seen = list(steps)
        await self.faults.raise_or_hang("answer")
        return self._answer(ask) if self._answer else self._first(ask)

    async def answer_probabilities(
        self, ask: Ask, steps: Sequence[Step]
    ) -> Mapping[str, float] | None:
        """Return the probabilities that the fake was made with."""
        del ask, steps
        return self._probabilities

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the next nudge, or `None` after the last nudge."""
        self.seen = list(steps)
        await self.faults.raise_or_hang("nudge")
        return self._nudges.pop(0) if self._nudges else None

    async def aclose(self) -> None:
        """Record the close. Idempotent."""
        self.closed = True

    def _first(self, ask: Ask) -> Answer:
        selected: dict[str, tuple[str, ...]] = {}
        text: dict[str, str] = {}
        for question in ask.questions:
            if question.options:
                selected[question.id] = (question.options[0].id,)
            elif question.allow_custom:
                text[question.id] = self._text
            else:
                return Answer(outcome="declined")
        return Answer(selected=selected, text=text)
