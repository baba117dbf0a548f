"""Read a chat completion from a server that may send anything."""

from dataclasses import dataclass

from .wire import Json, as_list, as_object

_CALLS = 64


class BadReplyError(Exception):
    """The response of the endpoint is not a chat completion."""


@dataclass(frozen=True, slots=True)
class ModelToolCall:
    """A tool call of the model."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply of the model."""

    message: Json
    """The endpoint's message, which goes into the next request unchanged."""
    text: str
    reasoning: str
    calls: tuple[ModelToolCall, ...]
    finish_reason: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int


def read_completion(response: Json) -> Completion:
    """Read a response body.

    The message is not changed, so the endpoint renders the same tokens again. Only empty fields
    are removed: some endpoints send empty fields, but refuse them in a request.

    Raises:
        BadReplyError: The response is not a chat completion.
    """
    choices = as_list(response.get("choices"))
    choice = as_object(choices[0]) if choices else {}
    raw = as_object(choice.get("message"))
    if not raw:
        raise BadReplyError(f"no choices[0].message in the reply: {str(response)[:200]}")
    calls = tuple(_call(item) for item in as_list(raw.get("tool_calls"))[:_CALLS])
    message = {key: value for key, value in raw.items() if value or key == "content"}
    message["role"] = "assistant"
    if len(as_list(raw.get("tool_calls"))) > _CALLS:
        message["tool_calls"] = as_list(raw["tool_calls"])[:_CALLS]
    message.setdefault("content", None if calls else "")
    usage = as_object(response.get("usage"))
    details = as_object(usage.get("prompt_tokens_details"))
    return Completion(
        message=message,
        text=_text(raw.get("content")),
        reasoning=_text(raw.get("reasoning_content") or raw.get("reasoning")),
        calls=calls,
        finish_reason=str(choice.get("finish_reason") or "stop"),
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
    )


def _call(item: object) -> ModelToolCall:
    call = as_object(item)
    function = as_object(call.get("function"))
    parts = (call.get("id"), function.get("name"), function.get("arguments", ""))
    if not all(isinstance(part, str) for part in parts):
        raise BadReplyError(f"a tool call without id, name or arguments: {str(item)[:200]}")
    call_id, name, arguments = map(str, parts)
    return ModelToolCall(call_id, name, arguments)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(as_object(part).get("text", "")) for part in as_list(content))


def _count(value: object) -> int:
    return max(0, value) if type(value) is int else 0
