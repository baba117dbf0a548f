"""The conversation by the `openai` client with the instrumentation of OpenInference."""

from openinference.instrumentation.openai import OpenAIInstrumentor
from weather import chat_with_openai, exporting

with exporting() as provider:
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    with provider.get_tracer("app").start_as_current_span("answer a request"):
        print(chat_with_openai())
