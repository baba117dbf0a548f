"""The meeting point of a rollout of verifiers and of the agent that answers its model calls."""

import asyncio
import contextvars
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]

STOP = {"stop": True}
"""The action that ends a rollout whose agent has ended, as a prompt that is too long does."""

OVER = "The episode is over."
"""What the agent reads if the environment says nothing at its end."""

FAULTS: contextvars.ContextVar[list[str]] = contextvars.ContextVar("faults")
"""What the rollout of this context logged about a reward function that failed."""


class UnsupportedError(ValueError):
    """BenchFlow cannot run this environment or task.

    Args:
        problem: The reason.
        field: The name of the field, class or function of verifiers that is not supported.
    """

    def __init__(self, problem: str, field: str) -> None:
        super().__init__(problem)
        self.field = field


@dataclass(frozen=True)
class Verdict:
    """The end of an episode."""

    reward: float | None = None
    parts: dict[str, float] = field(default_factory=dict[str, float])
    error: str | None = None
    """Why the episode has no reward."""
    tail: Sequence[Message] = ()
    """Messages of the environment after the last answer of the model."""


@dataclass(frozen=True)
class Turn:
    """The rollout waits for an answer of the model."""

    messages: Sequence[Message]
    """The messages that are new since the last turn."""


class Exchange:
    """Runs a rollout whose model is the agent.

    The rollout calls `ask` where it would call a model. `begin` and `act` return what comes next:
    another turn, or the verdict.
    """

    def __init__(self) -> None:
        self.tools: Sequence[dict[str, Any]] = ()
        """The tools of the first model call, with `name`, `description` and `parameters`."""
        self._events: asyncio.Queue[Turn | Verdict] = asyncio.Queue()
        self._action: asyncio.Future[dict[str, Any]] | None = None
        self._seen = 0
        self._task: asyncio.Task[None] | None = None
        self.verdict: Verdict | None = None
        self.is_stopped = False
        """Whether the agent has ended before the environment."""
        self.rollout = ""
        """The id of the rollout of verifiers, for environments that start several."""

    async def ask(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the agent's answer to a model call, as `act` got it."""
        fresh = list(messages[self._seen :])
        if not self._seen:
            self.tools = tools
        # The answer is in the next prompt, before the messages that are new then.
        self._seen = len(messages) + 1
        self._action = asyncio.get_running_loop().create_future()
        self._events.put_nowait(Turn(fresh))
        return await self._action

    async def begin(self, rollout: Coroutine[Any, Any, Verdict]) -> Turn | Verdict:
        """Start the rollout."""

        async def run() -> None:
            FAULTS.set([])
            try:
                verdict = await rollout
            except Exception as error:  # noqa: BLE001 - a failure of any environment is a verdict
                verdict = Verdict(error=f"{type(error).__name__}: {error}")
            if faults := FAULTS.get():
                verdict = Verdict(error=faults[0], tail=verdict.tail)
            self.verdict = verdict
            self._events.put_nowait(verdict)

        self._task = asyncio.get_running_loop().create_task(run())
        return await self._events.get()

    async def act(self, action: dict[str, Any]) -> Turn | Verdict:
        """Answer the model call that waits."""
        if self.verdict is not None:
            return self.verdict
        assert self._action is not None
        self.is_stopped = action == STOP
        self._action.set_result(action)
        return await self._events.get()

    async def close(self) -> None:
        """Cancel the rollout."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def text_of(messages: Sequence[Message]) -> str:
    """Return the text of messages. Parts without text are named."""
    return "\n\n".join(filter(None, (_content(each.get("content")) for each in messages)))


def _content(content: Any) -> str:  # noqa: ANN401 - text, parts or nothing
    if isinstance(content, str):
        return content
    texts = (
        part["text"] if part.get("type") == "text" else f"[{part.get('type')}]"
        for part in content or ()
    )
    return "\n".join(texts)
