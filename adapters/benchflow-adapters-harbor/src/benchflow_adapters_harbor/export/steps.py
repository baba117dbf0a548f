"""One tree node as steps of an ATIF trajectory.

Source of the format: harbor 0.24.0, `harbor.models.trajectories` (ATIF v1.8).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from benchflow_contracts import FinishedRollout, ModelCall, RolloutNode, Step, ToolCall, Usage
from benchflow_kernel import ASK_TOOL, answer_text, ask_arguments

from .plain import plain, plain_text


def iso(seconds: float) -> str:
    """Return a time since the epoch as Harbor writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def node_steps(rollout: FinishedRollout, node: RolloutNode) -> list[dict[str, Any]]:
    """Return the steps of the edge into `node`, without `step_id`.

    A prompt or an Answer is a step of the user, before the agent's step. An Ask is a call of
    `ask_user`. Its Answer is not an observation of that call, because the children of a fork
    share the call and have different Answers.
    """
    step = node.step
    if step is None:
        return []
    user_text = _user_text(rollout, node, step)
    steps = [_agent_step(rollout, node, step)]
    if user_text is not None:
        opening = {
            "source": "user",
            "timestamp": iso(step.started_at),
            "message": plain_text(user_text),
        }
        steps.insert(0, opening)
    return steps


def step_calls(rollout: FinishedRollout, step: Step) -> list[ModelCall]:
    """Return the recorded model calls of the agent's work in `step`, in order."""
    found = (rollout.calls.get(ident) for ident in step.model_calls)
    return [call for call in found if call is not None and call.purpose == "main"]


def step_usage(rollout: FinishedRollout, step: Step) -> tuple[Usage, float | None] | None:
    """Return tokens and dollars of `step`, as recorded or else as the agent reported, or None."""
    calls = step_calls(rollout, step)
    if not calls:
        return None if step.usage is None else (step.usage, None)
    costs = [call.cost_usd for call in calls if call.cost_usd is not None]
    usage = Usage(
        input_tokens=sum(call.usage.input_tokens for call in calls),
        output_tokens=sum(call.usage.output_tokens for call in calls),
        cached_tokens=sum(call.usage.cached_tokens for call in calls),
    )
    return usage, sum(costs) if costs else None


def spent(rollout: FinishedRollout, nodes: Sequence[RolloutNode]) -> dict[str, Any]:
    """Return tokens and dollars of `nodes` with the names of Harbor's `AgentContext`."""
    steps = [node.step for node in nodes if node.step is not None]
    usages = [found for step in steps if (found := step_usage(rollout, step)) is not None]
    if not usages:
        return {}
    costs = [cost for _, cost in usages if cost is not None]
    return {
        "n_input_tokens": sum(usage.input_tokens for usage, _ in usages),
        "n_cache_tokens": sum(usage.cached_tokens for usage, _ in usages),
        "n_output_tokens": sum(usage.output_tokens for usage, _ in usages),
        "cost_usd": sum(costs) if costs else None,
    }


def _user_text(rollout: FinishedRollout, node: RolloutNode, step: Step) -> str | None:
    before = None if node.parent is None else node.parent.step
    if step.answer is not None:
        if before is not None and before.ask is not None:
            return answer_text(before.ask, step.answer)
        return "\n".join(step.answer.text.values()) or step.answer.outcome
    return step.prompt or (rollout.instruction if before is None else None)


def _agent_step(rollout: FinishedRollout, node: RolloutNode, step: Step) -> dict[str, Any]:
    result: dict[str, Any] = {
        "source": "agent",
        "timestamp": iso(step.finished_at),
        "message": plain_text(step.message),
        "extra": {"benchflow": _extra(node, step)},
    }
    if step.reasoning:
        result["reasoning_content"] = plain_text(step.reasoning)
    tools = [_tool_call(call) for call in step.tool_calls]
    if step.ask is not None:
        arguments = plain(ask_arguments(step.ask))
        ident = plain_text(f"ask-{step.ask.id}")
        tools.append({"tool_call_id": ident, "function_name": ASK_TOOL, "arguments": arguments})
    if tools:
        result["tool_calls"] = tools
    results = _results(step, {tool["tool_call_id"] for tool in tools})
    if results:
        result["observation"] = {"results": results}
    return result | _metrics(rollout, step)


def _extra(node: RolloutNode, step: Step) -> dict[str, Any]:
    fields = {
        "node": node.id,
        "step": step.id,
        "role": step.role,
        "branch": node.label,
        "stop_reason": step.stop_reason,
    }
    return {key: plain(value) for key, value in fields.items() if value is not None}


def _tool_call(call: ToolCall) -> dict[str, Any]:
    arguments: object = plain(call.raw_input)
    if not isinstance(arguments, Mapping):
        arguments = {"title": plain_text(call.title)} if arguments is None else {"input": arguments}
    return {
        "tool_call_id": plain_text(call.id),
        "function_name": plain_text(call.name or call.kind),
        "arguments": cast("Mapping[str, Any]", arguments),
        "extra": {"title": plain_text(call.title), "kind": plain_text(call.kind)},
    }


def _results(step: Step, known: set[str]) -> list[dict[str, Any]]:
    """Return the results. A result names its call only if the call is in this step."""
    result: list[dict[str, Any]] = []
    for observation in step.observations:
        source = plain_text(observation.tool_call_id)
        extra: dict[str, Any] = {"status": observation.status}
        named = {"source_call_id": source} if source in known else {}
        if not named:
            extra["tool_call_id"] = source
        result.append({**named, "content": plain_text(observation.content), "extra": extra})
    return result


def _metrics(rollout: FinishedRollout, step: Step) -> dict[str, Any]:
    result: dict[str, Any] = {}
    calls = step_calls(rollout, step)
    if calls:
        result["llm_call_count"] = len(calls)
        if calls[-1].model is not None:
            result["model_name"] = plain_text(calls[-1].model)
    usages = step_usage(rollout, step)
    if usages is not None:
        usage, cost = usages
        result["metrics"] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "cached_tokens": usage.cached_tokens,
            **({} if cost is None else {"cost_usd": cost}),
            **_tokens(calls),
        }
    return result


def _tokens(calls: Sequence[ModelCall]) -> dict[str, Any]:
    """Return the exact tokens of a step with one call; several calls have several prompts."""
    if len(calls) != 1:
        return {}
    [call] = calls
    fields = {
        "prompt_token_ids": call.prompt_token_ids,
        "completion_token_ids": call.completion_token_ids,
        "logprobs": call.logprobs,
    }
    return {key: plain(value) for key, value in fields.items() if value is not None}
