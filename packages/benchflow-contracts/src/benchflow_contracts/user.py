"""The User Model, which answers the agent's questions."""

from collections.abc import Sequence
from typing import Protocol

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
