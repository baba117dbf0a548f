"""The sampled tokens of conversations, so that the next prompt begins with them."""

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from benchflow_gateway.documents import Document

from .chat import ChatRequest, key_of

PromptOrigin = Literal["first", "extended", "refused", "unknown"]
"""How a prompt was made. `first`: no message of the model is in it. `extended`: it begins with the
tokens before it. `refused`: the renderer cannot extend them, so all messages were rendered anew: a
break. `unknown`: the model's message was not sampled here, or long ago: a break."""


class PromptRenderer(Protocol):
    """A `Renderer` of the package `renderers`, which has no types: these are its methods."""

    def render_ids(
        self,
        messages: list[Document],
        *,
        tools: list[Document] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the token ids of messages."""
        ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Document],
        *,
        tools: list[Document] | None = None,
    ) -> Any | None:  # noqa: ANN401 - a RenderedTokens
        """Return the prompt that continues these tokens, or `None`."""
        ...

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[Document] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> Any:  # noqa: ANN401 - a ParsedResponse
        """Return the message in sampled tokens."""
        ...

    def get_stop_token_ids(self) -> list[int]:
        """Return the tokens that end an answer."""
        ...


@dataclass(frozen=True, slots=True)
class _Turn:
    prompt: tuple[int, ...]
    completion: tuple[int, ...]


class Conversations:
    """Makes prompts, and keeps the last turns of conversations.

    The newest turns are kept, up to `max_tokens` tokens.
    """

    def __init__(self, renderer: PromptRenderer, max_tokens: int = 50_000_000) -> None:
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._turns: OrderedDict[str, _Turn] = OrderedDict()
        self._tokens = 0
        self.origins: Counter[PromptOrigin] = Counter()
        """The number of prompts by origin."""

    def prompt(self, request: ChatRequest) -> tuple[tuple[int, ...], PromptOrigin]:
        """Return the token ids of a request's prompt, and how they were made."""
        ids, origin = self._extended(request)
        if ids is None:
            ids = self._renderer.render_ids(
                request.messages, tools=request.tools or None, add_generation_prompt=True
            )
        self.origins[origin] += 1
        return tuple(ids), origin

    def add(
        self, request: ChatRequest, message: Document, prompt: Sequence[int], tokens: Sequence[int]
    ) -> None:
        """Keep the sampled tokens of the message that follows a request."""
        key = key_of([*request.messages, message], request.tools)
        turn = _Turn(tuple(prompt), tuple(tokens))
        old = self._turns.pop(key, None)
        self._tokens += _size(turn) - (0 if old is None else _size(old))
        self._turns[key] = turn
        while self._tokens > self._max_tokens and len(self._turns) > 1:
            _, dropped = self._turns.popitem(last=False)
            self._tokens -= _size(dropped)

    def _extended(self, request: ChatRequest) -> tuple[Sequence[int] | None, PromptOrigin]:
        messages = request.messages
        last = max(
            (at for at, message in enumerate(messages) if message["role"] == "assistant"),
            default=None,
        )
        if last is None:
            return None, "first"
        key = key_of(messages[: last + 1], request.tools)
        turn = self._turns.get(key)
        if turn is None:
            return None, "unknown"
        self._turns.move_to_end(key)
        bridged = self._renderer.bridge_to_next_turn(
            list(turn.prompt),
            list(turn.completion),
            messages[last + 1 :],
            tools=request.tools or None,
        )
        known = [*turn.prompt, *turn.completion]
        if bridged is None or list(bridged.token_ids[: len(known)]) != known:
            return None, "refused"
        return bridged.token_ids, "extended"


def _size(turn: _Turn) -> int:
    return len(turn.prompt) + len(turn.completion)
