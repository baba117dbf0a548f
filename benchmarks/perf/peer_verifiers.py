"""The shared workload of null_engine.py on verifiers' ToolEnv; prints CPU ms per rollout.

k replies with a tool call and its result, then the closing reply that ToolEnv needs: one
model call more than the others make. Nothing is written to disk, which is in its favour.
Start-up is taken out by the difference between two sizes.
"""

# ruff: noqa: ANN401, ARG001, ARG002 - the shapes are the peer's

import asyncio
import json
import logging
import sys
import time
from typing import Any

import verifiers as vf
from datasets import Dataset, disable_progress_bars
from verifiers.clients.client import Client
from verifiers.types import Response, ResponseMessage, ToolCall


class NullClient(Client):  # type: ignore[type-arg]
    def __init__(self, count: int) -> None:
        super().__init__(object())
        self._count = count

    def setup_client(self, config: Any) -> Any:
        return config

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(
        self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any
    ) -> Response:
        await asyncio.sleep(0)
        more = sum(message.role == "tool" for message in prompt) < self._count
        call = ToolCall(id="c", name="null_tool", arguments='{"cmd": "true"}')
        message = ResponseMessage(
            content="I will look at the next file.",
            tool_calls=[call] if more else None,
            finish_reason="tool_calls" if more else "stop",
            is_truncated=False,
        )
        return Response(id="r", created=0, model=model, message=message)

    async def raise_from_native_response(self, response: Any) -> None:
        pass

    async def from_native_response(self, response: Any) -> Response:
        return response

    async def close(self) -> None:
        pass


async def null_tool(cmd: str) -> str:
    """Do nothing.

    Args:
        cmd: What not to do.
    """
    await asyncio.sleep(0)
    return cmd


async def always(completion: Any) -> float:
    return 1.0


async def cost(count: int, n: int) -> float:
    rows = [{"question": "Do nothing.", "answer": "x"} for _ in range(n)]
    env = vf.ToolEnv(
        tools=[null_tool],
        max_turns=count + 1,
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[always]),
    )
    inputs = env.get_dataset()
    before = time.process_time()
    done = await env.generate(
        inputs,
        client=NullClient(count),
        model="null",
        max_concurrent=64,
        independent_scoring=True,
        on_progress=lambda *_: None,  # instead of a progress bar
    )
    spent = time.process_time() - before
    outputs = done["outputs"]
    if len(outputs) != n or any(output["reward"] != 1.0 for output in outputs):
        raise SystemExit("verifiers failed")
    tools = sum(dict(message)["role"] == "tool" for message in outputs[0]["completion"])
    if tools != count:
        raise SystemExit(f"verifiers made {tools} tool calls, not {count}")
    return spent


async def measure(count: int, small: int, large: int) -> float:
    await cost(count, 5)
    base = await cost(count, small)
    return (await cost(count, large) - base) * 1000 / (large - small)


def main() -> None:
    logging.disable(logging.CRITICAL)
    disable_progress_bars()
    count, small, large = (int(value) for value in sys.argv[1:])
    print(json.dumps(asyncio.run(measure(count, small, large))))


if __name__ == "__main__":
    main()
