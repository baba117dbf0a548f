"""What the programs below share: the tool, and a tracer provider that exports to loopback."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from openai import OpenAI
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

SYSTEM = "Use the tool for each city."
QUESTION = "What is the weather in Paris, and in Atlantis?"
MODEL = "stub-large"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Return the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return "21 degrees" if city == "Paris" else f"unknown city: {city}"


@contextmanager
def exporting() -> Iterator[TracerProvider]:
    """Yield a provider that exports to $OTEL_EXPORTER_OTLP_ENDPOINT; flush it at the end."""
    provider = TracerProvider(
        resource=Resource.create({"service.name": "weather-agent", "service.version": "1.8"})
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield provider
    finally:
        provider.shutdown()


def chat_with_openai() -> str:
    """Run the conversation by the `openai` client, as a user without a framework would."""
    client = OpenAI(base_url=os.environ["MODEL_URL"], api_key="unused")
    messages: list = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            content = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
