"""The user that a model plays."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

from benchflow_contracts import Answer, Ask, Endpoint, EnvironmentError_, Step

from .daemon import call_in_daemon
from .nudges import next_nudge
from .permission import allow
from .persona import Message, ask_messages, nudge_messages
from .reply import ReplyError, parse_answer, parse_nudge

_ATTEMPTS = 2


class SimulatedUser:
    """Answers by a model that plays `persona`, over an OpenAI-compatible endpoint.

    The reply must be one JSON object of a fixed shape. An invalid reply is sent back once
    with the reason. The model gets the agent's words only as quoted data. Permission
    requests are allowed without a model call.

    Raises:
        EnvironmentError_: From `answer` and `nudge`, without a usable reply. The user is a
            part of the world, so the rollout ends unscored, and the agent is not blamed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        persona: str = "",
        nudges: Sequence[str] = (),
        timeout: float = 60,
    ) -> None:
        self._endpoint = endpoint
        self._model = model
        self._persona = persona
        self._nudges = tuple(nudges)
        self._timeout = timeout

    async def answer(self, ask: Ask, steps: Sequence[Step]) -> Answer:
        """Ask the model, which may choose options, write text, or decline."""
        if ask.kind == "permission":
            return allow(ask)
        messages = ask_messages(self._persona, ask, steps)
        for _ in range(_ATTEMPTS):
            content = await self._complete(messages)
            try:
                return parse_answer(_object(content), ask)
            except ReplyError as error:
                messages = _repair(messages, content, str(error))
        raise _failed(messages[-1]["content"])

    async def nudge(self, steps: Sequence[Step]) -> str | None:
        """Return the task's next nudge, or a follow-up of the model, or `None`."""
        if self._nudges:
            return next_nudge(self._nudges, steps)
        messages = nudge_messages(self._persona, steps)
        for _ in range(_ATTEMPTS):
            content = await self._complete(messages)
            try:
                return parse_nudge(_object(content))
            except ReplyError as error:
                messages = _repair(messages, content, str(error))
        raise _failed(messages[-1]["content"])

    async def aclose(self) -> None:
        """Do nothing: no connection stays open between calls."""

    async def _complete(self, messages: list[Message]) -> str:
        # Only this user needs the HTTP client, so the import is late.
        from .chat import complete  # noqa: PLC0415

        return await call_in_daemon(
            lambda: complete(self._endpoint, self._model, messages, self._timeout)
        )


def _object(content: str) -> Mapping[str, object]:
    """Return the one JSON object of the reply, in a code fence or not."""
    text = content.strip()
    if text.startswith("```") and text.endswith("```"):
        text = text.removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReplyError(f"the reply is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ReplyError("the reply is not a JSON object")
    return cast("dict[str, object]", found)


def _repair(messages: list[Message], content: str, problem: str) -> list[Message]:
    return [
        *messages,
        {"role": "assistant", "content": content},
        {"role": "user", "content": f"{problem}. Reply again with the JSON object alone."},
    ]


def _failed(problem: str) -> EnvironmentError_:
    return EnvironmentError_(
        f"the simulated user gave no usable reply in {_ATTEMPTS} attempts: {problem}",
        hint="use a model that follows the reply format, or a scripted user",
        retryable=True,
    )
