"""The shared workload of null_engine.py on inspect-ai; prints CPU ms per rollout.

Exactly k model calls and k tool calls per sample through a null ModelAPI (its own mock
model dumps every message on each call), with the log on disk. Start-up is taken out by
the difference between two sizes.
"""

# ruff: noqa: A002, A004, ANN401, ARG001, ARG002 - the shapes are the peer's

import asyncio
import json
import sys
import tempfile
import time
from typing import Any

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    get_model,
    modelapi,
)
from inspect_ai.model._model_output import ChatCompletionChoice
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import Generate, TaskState, solver, use_tools
from inspect_ai.tool import ToolCall, tool


class NullApi(ModelAPI):
    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> ModelOutput:
        await asyncio.sleep(0)
        call = ToolCall(id="c", function="null_tool", arguments={"cmd": "true"})
        message = ChatMessageAssistant(
            content="I will look at the next file.", tool_calls=[call], source="generate"
        )
        choice = ChatCompletionChoice(message=message, stop_reason="tool_calls")
        return ModelOutput(model="null", choices=[choice])


@modelapi(name="null")
def null() -> type[ModelAPI]:
    return NullApi


@tool
def null_tool() -> Any:
    async def execute(cmd: str) -> str:
        """Do nothing.

        Args:
            cmd: What not to do.
        """
        await asyncio.sleep(0)
        return cmd

    return execute


@solver
def steps(count: int) -> Any:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        for _ in range(count):
            state = await generate(state, tool_calls="single")
        return state

    return solve


@scorer(metrics=[accuracy()])
def always() -> Any:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=1)

    return score


def cost(count: int, n: int) -> float:
    samples = [Sample(id=number, input="Do nothing.", target="x") for number in range(n)]
    task = Task(
        dataset=MemoryDataset(samples),
        solver=[use_tools(null_tool()), steps(count)],
        scorer=always(),
    )
    model = get_model("null/null", config=GenerateConfig(max_connections=64))
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        (log,) = eval(task, model=model, log_dir=folder, display="none", max_samples=64)
        spent = time.process_time() - before
        if log.status != "success" or log.samples is None or len(log.samples) != n:
            raise SystemExit(f"inspect-ai failed: {log.error}")
        tools = sum(message.role == "tool" for message in log.samples[0].messages)
        if tools != count:
            raise SystemExit(f"inspect-ai made {tools} tool calls, not {count}")
    return spent


def main() -> None:
    count, small, large = (int(value) for value in sys.argv[1:])
    cost(count, 5)
    base = cost(count, small)
    print(json.dumps((cost(count, large) - base) * 1000 / (large - small)))


if __name__ == "__main__":
    main()
