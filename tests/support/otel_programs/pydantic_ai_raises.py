"""A pydantic-ai agent whose tool raises, which ends the run."""

import os

from pydantic_ai import Agent, InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from weather import MODEL, QUESTION, SYSTEM, exporting

with exporting() as provider:
    Agent.instrument_all(InstrumentationSettings(tracer_provider=provider))
    endpoint = OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key="unused")
    agent = Agent(OpenAIChatModel(MODEL, provider=endpoint), name="weather", system_prompt=SYSTEM)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        if city != "Paris":
            raise ValueError(f"unknown city: {city}")
        return "21 degrees"

    try:
        agent.run_sync(QUESTION)
    except ValueError as error:
        print(error)
