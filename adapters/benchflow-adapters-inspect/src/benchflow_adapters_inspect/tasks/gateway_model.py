"""An Inspect model over an endpoint of Chat Completions, such as a route of our gateway."""

# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
# pyright: basic, reportMissingImports=false
# ruff: noqa: A002 - Inspect calls `input` by this name

import json
from typing import Any

import httpx
from benchflow_contracts import Endpoint
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Model,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.tool import ToolCall, ToolChoice, ToolInfo

_STOPS = {"length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter"}
_TIMEOUT_SEC = 600.0


def gateway_model(name: str, endpoint: Endpoint) -> Model:
    """Return a model whose calls go to `endpoint`."""
    model: Model = get_model(f"benchflow/{name}", memoize=False, endpoint=endpoint)
    return model


@modelapi(name="benchflow")
def benchflow() -> type[ModelAPI]:
    """Return the class of the model provider `benchflow`. Inspect registers this function."""
    return GatewayApi


class GatewayApi(ModelAPI):
    """Sends each call as a request of Chat Completions. It retries nothing."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,  # noqa: ARG002 - the endpoint has the address
        api_key: str | None = None,  # noqa: ARG002
        config: GenerateConfig | None = None,
        *,
        endpoint: Endpoint,
    ) -> None:
        super().__init__(model_name, base_url=endpoint.url, config=config or GenerateConfig())
        self._endpoint = endpoint

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the answer of the endpoint."""
        body: dict[str, Any] = {
            "model": self.model_name,
            "messages": [_message(each) for each in input],
        }
        if tools:
            body["tools"] = [_tool(each) for each in tools]
            names = {"any": "required", "auto": "auto", "none": "none"}
            body["tool_choice"] = (
                names.get(tool_choice, "auto")
                if isinstance(tool_choice, str)
                else {"type": "function", "function": {"name": tool_choice.name}}
            )
        for key in ("temperature", "top_p", "seed", "max_tokens"):
            value = getattr(config, key)
            if value is not None:
                body[key] = value
        url = self._endpoint.url.rstrip("/")
        async with httpx.AsyncClient(timeout=_TIMEOUT_SEC) as client:
            headers = dict(self._endpoint.headers)
            response = await client.post(f"{url}/chat/completions", json=body, headers=headers)
        response.raise_for_status()
        return _output(response.json(), self.model_name)


def _message(message: ChatMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.role == "tool":
        body["tool_call_id"] = message.tool_call_id
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


def _tool(tool: ToolInfo) -> dict[str, Any]:
    parameters = tool.parameters.model_dump(exclude_none=True)
    described = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": described}


def _output(body: dict[str, Any], model: str) -> ModelOutput:
    choices = []
    for choice in body["choices"]:
        message = choice["message"]
        calls = [
            ToolCall(
                id=call["id"],
                function=call["function"]["name"],
                arguments=json.loads(call["function"]["arguments"] or "{}"),
            )
            for call in message.get("tool_calls") or ()
        ]
        answer = ChatMessageAssistant(
            content=message.get("content") or "", tool_calls=calls or None, source="generate"
        )
        stop = _STOPS.get(choice.get("finish_reason"), "stop")
        choices.append(ChatCompletionChoice(message=answer, stop_reason=stop))
    usage = body.get("usage") or {}
    tokens = ModelUsage(
        input_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", 0),
        total_tokens=usage.get("total_tokens", 0),
    )
    return ModelOutput(model=body.get("model") or model, choices=choices, usage=tokens)
