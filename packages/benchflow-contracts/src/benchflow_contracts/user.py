"""The User Model, which answers the agent's questions."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from .ask import Answer, Ask
from .step import Step


class UserModel(Protocol):
    """Answers the agent's questions and gives follow-up prompts."""

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Answer `ask`, given the steps so far. A user may decline."""
        ...

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the next prompt after a finished turn, or `None` to stop."""
        ...

    async def aclose(self) -> None:
        """Release all resources. Idempotent."""
        ...


@runtime_checkable
class HasAnswerProbabilities(Protocol):
    """A User Model that knows how probable each answer is.

    Without this extension, the option that one `answer` chooses has the probability 1. That is
    exact for a user that always gives the same answer, and one sample of any other user.
    """

    async def answer_probabilities(
        self, ask: Ask, steps: Sequence[Step]
    ) -> Mapping[str, float] | None:
        """Return the probability of each option of the only question of `ask`, by its id.

        Options may be missing; their probability is 0. The sum is at most 1. `None` if the user
        cannot say.
        """
        ...
