"""The conversation of a model call, as messages of Chat Completions."""

from collections.abc import Sequence
from typing import Any

from benchflow_contracts import EvidenceMissingError, ModelApi, ModelCall

from .documents import Document, documents
from .errors import RefusedError
from .translate import translate_messages

Message = dict[str, Any]
_BESIDE = {"tools", "tool_choice", "toolConfig", "text", "output_config", "response_format"}
"""Fields of a request that are not its conversation."""


def messages_of(api: ModelApi, request: Document) -> list[Message]:
    """Return the messages of a request, the system prompt first.

    A request of another wire than Chat Completions is translated: thoughts are left out.

    Raises:
        RefusedError: Chat Completions cannot express them, or the provider keeps some of them.
    """
    if api == "openai-chat":
        return documents(request.get("messages"))
    kept = {key: value for key, value in request.items() if key not in _BESIDE}
    return translate_messages(kept, api)


def conversation_of(calls: Sequence[ModelCall]) -> list[Message]:
    """Return the messages of the last answered call of the agent's work, with its answer.

    Empty without such a call.

    Raises:
        EvidenceMissingError: Chat Completions cannot express the messages.
    """
    for call in reversed(calls):
        if call.purpose == "main" and call.status == 200 and call.response and call.error is None:
            return _whole(call)
    return []


def _whole(call: ModelCall) -> list[Message]:
    try:
        messages = messages_of(call.api, dict(call.request))
        return [*messages, *_answer(call.api, dict(call.response or {}))]
    except RefusedError as error:
        raise EvidenceMissingError(
            f"call {call.id!r} has no messages of Chat Completions: {error.message}",
            hint="read the steps of the node, or the recorded call",
        ) from error


def _answer(api: ModelApi, response: Document) -> list[Message]:
    """Return the message of an answer: it is read as the history of the agent's next request."""
    match api:
        case "openai-chat":
            choices = documents(response.get("choices"))
            return documents([choice.get("message") for choice in choices[:1]])
        case "anthropic-messages":
            given = {"role": "assistant", "content": response.get("content")}
            return translate_messages({"messages": [given]}, api)
        case "openai-responses":
            return translate_messages({"input": response.get("output")}, api)
        case _:
            candidates = documents(response.get("candidates"))
            contents = [candidate.get("content") for candidate in candidates[:1]]
            return translate_messages({"contents": contents}, api)
