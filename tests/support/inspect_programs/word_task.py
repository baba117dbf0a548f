"""A small task of Inspect, with files, a setup script, a scorer in the sandbox, and a model."""

# ruff: noqa: A002

import asyncio
import json
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ModelAPI, ModelOutput, ModelUsage, modelapi
from inspect_ai.model._model_output import ChatCompletionChoice
from inspect_ai.scorer import (
    Score,
    Target,
    accuracy,
    choice,
    includes,
    model_graded_qa,
    scorer,
)
from inspect_ai.solver import (
    Generate,
    TaskState,
    generate,
    multiple_choice,
    solver,
    use_tools,
)
from inspect_ai.tool import ToolCall, bash
from inspect_ai.util import sandbox, store


class ScriptedApi(ModelAPI):
    """A model that runs one command of the agent's tools, and then answers."""

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
        results = [message for message in input if message.role == "tool"]
        usage = ModelUsage(input_tokens=10, output_tokens=5, total_tokens=15)
        if results or not tools:
            answer = results[-1].text if results else "nothing"
            message = ChatMessageAssistant(content=f"I wrote {answer}", source="generate")
            choice = ChatCompletionChoice(message=message, stop_reason="stop")
        else:
            command = "cat given.txt setup.txt > answer.txt; cat answer.txt"
            name = next(t.name for t in tools if "command" in json.dumps(t.parameters.model_dump()))
            call = ToolCall(id="c1", function=name, arguments={"command": command})
            message = ChatMessageAssistant(content="I look.", tool_calls=[call], source="generate")
            choice = ChatCompletionChoice(message=message, stop_reason="tool_calls")
        return ModelOutput(model="scripted", choices=[choice], usage=usage)


@modelapi(name="scripted")
def scripted() -> type[ModelAPI]:
    return ScriptedApi


@scorer(metrics=[accuracy()])
def file_is() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        try:
            text = await sandbox().read_file("answer.txt")
        except FileNotFoundError:
            return Score(value="I", explanation="no answer.txt")
        return Score(value="C" if text.strip() == target.text else "I", answer=text)

    return score


@scorer(metrics=[accuracy()])
def broken() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        raise OSError("the disk of the scorer is full")

    return score


@scorer(metrics=[accuracy()])
def wordy() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="excellent")

    return score


@solver
def by_command(command: str = "cat given.txt setup.txt > answer.txt") -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done = await sandbox().exec(["sh", "-c", command])
        message = ChatMessageAssistant(content="wrote " + await sandbox().read_file("answer.txt"))
        state.output = ModelOutput.from_message(message)
        state.messages.append(message)
        state.metadata["returncode"] = done.returncode
        return state

    return solve


@solver
def notes(kind: str) -> Any:
    """Write a word by one command; of the kind `endless`, never end then."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done = await sandbox().exec(["sh", "-c", "echo noted > answer.txt; cat answer.txt"])
        if kind == "endless":
            await asyncio.Event().wait()
        state.output = ModelOutput.from_message(ChatMessageAssistant(content=done.stdout))
        return state

    return solve


@task
def noted(kind: str = "short") -> Task:
    """A task whose solver calls no model."""
    sample = Sample(id="one", input="Write the word noted to answer.txt.", target="noted")
    return Task(dataset=[sample], solver=notes(kind), scorer=includes(), sandbox="benchflow")


@task
def words(words: str = "blue,green") -> Task:
    first, second = words.split(",")
    samples = [
        Sample(
            id=f"sample-{index}",
            input="Write the two words to answer.txt.",
            target=first + second,
            files={"given.txt": first},
            setup=f"#!/bin/sh\nprintf {second} > setup.txt\n",
            metadata={"index": index},
        )
        for index in (1, 2)
    ]
    return Task(
        dataset=samples, solver=by_command(), scorer=[file_is(), includes()], sandbox="benchflow"
    )


@task
def judged() -> Task:
    sample = Sample(id="one", input="Write the two words to answer.txt.", target="bluegreen")
    return Task(dataset=[sample], scorer=model_graded_qa(), sandbox="benchflow")


@task
def unscorable(kind: str = "broken") -> Task:
    sample = Sample(id="one", input="Write the two words to answer.txt.", target="bluegreen")
    scorers = {"broken": broken(), "wordy": wordy()}
    return Task(dataset=[sample], scorer=scorers[kind], sandbox="benchflow")


@solver
def writes_given() -> Any:
    """Write a file, and tell the scorer its content by the metadata of the sample."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if Path(__file__).with_name("setup-is-broken").exists():
            raise OSError("the server of the setup is away")
        await sandbox().write_file("given.txt", "blue")
        await sandbox().write_file("setup.txt", "green")
        state.metadata["expected"] = "bluegreen"
        store().set("prepared", True)
        return state

    return solve


@scorer(metrics=[accuracy()])
def as_the_setup_said() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        try:
            text = await sandbox().read_file("answer.txt")
        except FileNotFoundError:  # A limit has ended the work before.
            text = ""
        same = text == state.metadata["expected"] and state.store.get("prepared") is True
        return Score(value={"same": float(same), "messages": len(state.messages)})

    return score


async def leave_a_mark(state: TaskState) -> None:
    await sandbox().write_file("cleaned.txt", "yes")


@task
def prepared(
    message_limit: int = 20,
    turn_limit: int | None = None,
    token_limit: str | None = None,
    working_limit: int | None = None,
    cost_limit: float | None = None,
) -> Task:
    """A task with a setup solver, a solver with a tool, limits, and a cleanup."""
    sample = Sample(id="one", input="Write the two words to answer.txt.", target="bluegreen")
    return Task(
        dataset=[sample],
        setup=writes_given(),
        solver=[use_tools(bash(timeout=30)), generate()],
        scorer=as_the_setup_said(),
        cleanup=leave_a_mark,
        sandbox="benchflow",
        message_limit=message_limit,
        turn_limit=turn_limit,
        token_limit=token_limit,
        working_limit=working_limit,
        cost_limit=cost_limit,
        epochs=3,
    )


@task
def letters() -> Task:
    """A question with choices."""
    sample = Sample(id="one", input="Which is a colour?", choices=["tea", "blue"], target="B")
    return Task(dataset=[sample], solver=multiple_choice(), scorer=choice(), sandbox="benchflow")
