"""The user that chooses the first option."""

from collections.abc import Sequence

from benchflow_contracts import Answer, Ask, Step

from .nudges import next_nudge
from .permission import allow


class AutoUser:
    """Chooses the first option of every question and allows every permission request.

    If a question requires free text, the whole Ask is declined.
    """

    def __init__(self, nudges: Sequence[str] = ()) -> None:
        self._nudges = tuple(nudges)

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Return the first option of each question."""
        del steps
        if ask.kind == "permission":
            return allow(ask)
        if not all(question.options for question in ask.questions):
            return Answer(outcome="declined")
        return Answer(selected={item.id: (item.options[0].id,) for item in ask.questions})

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the next prompt of the list."""
        return next_nudge(self._nudges, steps)

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""
