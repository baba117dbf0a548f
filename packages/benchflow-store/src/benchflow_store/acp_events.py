"""`trajectory/acp_trajectory.jsonl`: the steps of one trajectory as ACP-like events."""

from collections.abc import Iterable, Iterator
from typing import Any

from benchflow_contracts import Step


def acp_events(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    """Yield one record for each message, tool call, question and answer, in order.

    Record types: `user_message`, `agent_thought` and `agent_message` with `text`;
    `tool_call` with its result; `ask` and `answer`.
    """
    for step in steps:
        if step.answer is not None:
            yield {"type": "answer", **step.answer.model_dump(mode="json")}
        if step.prompt is not None:
            yield {"type": "user_message", "text": step.prompt}
        if step.reasoning:
            yield {"type": "agent_thought", "text": step.reasoning}
        if step.message:
            yield {"type": "agent_message", "text": step.message}
        yield from _tool_calls(step)
        if step.ask is not None:
            yield {"type": "ask", **step.ask.model_dump(mode="json", exclude={"raw"})}


def _tool_calls(step: Step) -> Iterator[dict[str, Any]]:
    observed = {observation.tool_call_id: observation for observation in step.observations}
    for call in step.tool_calls:
        observation = observed.get(call.id)
        yield {
            "type": "tool_call",
            "tool_call_id": call.id,
            "kind": call.kind,
            "title": call.title,
            "status": observation.status if observation else "pending",
            "content": observation.content if observation else "",
            "raw_input": call.raw_input,
            "raw_output": observation.raw_output if observation else None,
        }
