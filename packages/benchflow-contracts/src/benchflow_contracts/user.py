"""The User Model: who sits at the other end of the agent's questions."""

from collections.abc import Sequence
from typing import Protocol

from .ask import Answer, Ask
from .step import Step


class UserModel(Protocol):
    """Answers the agent and decides on follow-ups. A policy, not a special actor."""

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Answer `ask`, given the steps so far. Declining is an answer."""
        ...

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the next prompt after a finished turn, or `None` to stop."""
        ...

    async def aclose(self) -> None:
        """Release what it holds. Idempotent."""
        ...
