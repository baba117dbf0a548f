"""The conversation by pydantic-ai, which has spans for the agent, the model and the tools."""

import os

from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from weather import MODEL, QUESTION, SYSTEM, exporting, get_weather

with exporting() as provider:
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    endpoint = OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key="unused")
    agent = Agent(OpenAIChatModel(MODEL, provider=endpoint), name="weather", system_prompt=SYSTEM)
    agent.tool_plain(get_weather)
    print(agent.run_sync(QUESTION).output)
