"""An Inspect model over an endpoint of Chat Completions, such as a route of our gateway."""

# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
# pyright: basic, reportMissingImports=false
# ruff: noqa: A002 - Inspect calls `input` by this name

import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any, Protocol

import aiohttp
from benchflow_contracts import Endpoint, UsageError
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo
from pydantic import ValidationError

_STOPS = {"length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}
_TIMEOUT_SEC = 600.0
_SAMPLING = ("temperature", "top_p", "seed", "max_tokens", "frequency_penalty", "presence_penalty")


class CallRecorder(Protocol):
    """Gets each call of a model, such as to make steps of them."""

    def on_request(self, results: Sequence[tuple[str, str, bool]]) -> None:
        """Take the tool results of a request: `(id of the call, text, failed)`."""

    def on_answer(
        self,
        text: str,
        reasoning: str,
        calls: Sequence[tuple[str, str, object]],
        *,
        started_at: float,
    ) -> None:
        """Take an answer. `calls` are `(id, function, arguments)`."""


@asynccontextmanager
async def gateway_model(
    name: str, endpoint: Endpoint, recorder: CallRecorder | None = None
) -> AsyncGenerator[Model]:
    """Open a model whose calls go to `endpoint`, and are reported to `recorder`.

    All calls share the connections of one client, which is closed at the end.
    """
    async with _new_client() as client:
        shared = {"endpoint": endpoint, "recorder": recorder, "client": client}
        yield get_model(f"benchflow/{name}", memoize=False, **shared)


@modelapi(name="benchflow")
def benchflow() -> type[ModelAPI]:
    """Return the class of the model provider `benchflow`. Inspect registers this function."""
    return GatewayApi


class GatewayApi(ModelAPI):
    """Sends each call as a request of Chat Completions. It retries nothing.

    In `inspect eval`, `--model benchflow/NAME --model-base-url URL` is the model NAME of any
    endpoint of Chat Completions.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        endpoint: Endpoint | None = None,
        recorder: CallRecorder | None = None,
        client: aiohttp.ClientSession | None = None,
    ) -> None:
        if endpoint is None:
            if base_url is None:
                raise UsageError(
                    f"the model benchflow/{model_name} has no address",
                    hint="give --model-base-url http://HOST:PORT/v1",
                )
            headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
            endpoint = Endpoint(url=base_url, headers=headers)
        super().__init__(model_name, base_url=endpoint.url, config=config or GenerateConfig())
        self._endpoint = endpoint
        self._recorder = recorder
        self._client = client

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the answer of the endpoint.

        Raises:
            ValueError: A message has a part that this wire does not have, or the answer is not
                one of Chat Completions.
        """
        started_at = time.time()
        body = self._body(input, tools, tool_choice, config)
        if self._recorder is not None:
            self._recorder.on_request(tool_results(input))
        answer = await self._post(body)
        try:
            output = _output(answer, self.model_name)
        except (KeyError, TypeError, AttributeError, IndexError, ValidationError) as error:
            raise ValueError(f"the model's answer cannot be read: {error!r:.500}") from error
        if self._recorder is not None:
            message = output.message
            calls = [(c.id, c.function, c.arguments) for c in message.tool_calls or ()]
            reasoning = _reasoning(message)
            self._recorder.on_answer(message.text, reasoning, calls, started_at=started_at)
        return output

    async def _post(self, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON of a stranger
        url = f"{self._endpoint.url.rstrip('/')}/chat/completions"
        headers, shared = self._endpoint.headers, self._client
        # A model that Inspect makes may be used in several event loops, so it keeps no connection.
        async with (
            _new_client(trust_env=True) if shared is None else nullcontext(shared) as client,
            client.post(url, json=body, headers=headers, allow_redirects=False) as response,
        ):
            response.raise_for_status()
            return json.loads(await response.read())

    def _body(
        self,
        messages: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model_name,
            "messages": [_message(each) for each in messages],
        }
        if tools:
            body["tools"] = [_tool(each) for each in tools]
            names = {"any": "required", "auto": "auto", "none": "none"}
            body["tool_choice"] = (
                names.get(tool_choice, "auto")
                if isinstance(tool_choice, str)
                else {"type": "function", "function": {"name": tool_choice.name}}
            )
        for key in _SAMPLING:
            value = getattr(config, key)
            if value is not None:
                body[key] = value
        if config.stop_seqs:
            body["stop"] = config.stop_seqs
        return body


def _new_client(*, trust_env: bool = False) -> aiohttp.ClientSession:
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_TIMEOUT_SEC, sock_read=_TIMEOUT_SEC)
    connections = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(connector=connections, timeout=limits, trust_env=trust_env)


def tool_results(messages: Sequence[ChatMessage]) -> list[tuple[str, str, bool]]:
    """Return the tool results of a conversation as `(id of the call, text, failed)`."""
    return [
        (each.tool_call_id or "", each.text, False)
        if each.error is None
        else (each.tool_call_id or "", each.error.message, True)
        for each in messages
        if isinstance(each, ChatMessageTool)
    ]


def _reasoning(message: ChatMessageAssistant) -> str:
    if isinstance(message.content, str):
        return ""
    return "\n".join(part.reasoning for part in message.content if part.type == "reasoning")


def _message(message: ChatMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.role == "tool":
        body["tool_call_id"] = message.tool_call_id
        if message.error is not None:
            body["content"] = message.error.message
    if message.role == "assistant" and message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function, "arguments": json.dumps(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return body


def _content(message: ChatMessage) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str) or message.role == "assistant":
        return str(message.text)
    if all(part.type == "text" for part in message.content):
        return str(message.text)
    parts: list[dict[str, Any]] = []
    for part in message.content:
        if part.type == "text":
            parts.append({"type": "text", "text": part.text})
        elif part.type == "image":
            parts.append({"type": "image_url", "image_url": {"url": part.image}})
        else:
            raise ValueError(f"a part of the type {part.type!r} cannot be sent to the model")
    return parts


def _tool(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    described = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": described}


def _output(body: dict[str, Any], model: str) -> ModelOutput:
    choices = []
    for choice in body["choices"]:
        message = choice["message"]
        calls = [_tool_call(each) for each in message.get("tool_calls") or ()]
        answer = ChatMessageAssistant(
            content=_answer_content(message), tool_calls=calls or None, source="generate"
        )
        stop = _STOPS.get(choice.get("finish_reason"), "stop")
        choices.append(ChatCompletionChoice(message=answer, stop_reason=stop))
    if not choices:
        raise IndexError("no choices")
    usage = body.get("usage") or {}
    tokens = ModelUsage(
        input_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        total_tokens=usage.get("total_tokens", 0),
    )
    return ModelOutput(model=body.get("model") or model, choices=choices, usage=tokens)


def _answer_content(message: dict[str, Any]) -> str | list[Any]:
    text = message.get("content") or ""
    thought = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(thought, str) or not thought:
        return text
    return [ContentReasoning(reasoning=thought), ContentText(text=text)]


def _tool_call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    error = None
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError) as failed:
        arguments, error = {}, f"the arguments are not JSON: {failed}"
    if not isinstance(arguments, dict):
        arguments, error = {}, "the arguments are not an object"
    # Inspect reports a `parse_error` to the model instead of calling the tool.
    return ToolCall(
        id=call["id"], function=function["name"], arguments=arguments, parse_error=error
    )
