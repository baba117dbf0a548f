"""The `gen_ai.*` conventions of OpenTelemetry, from 1.27 to the own repository of 0.1.0 and later.

Source: https://github.com/open-telemetry/semantic-conventions-genai, and the `gen-ai` pages of
semantic-conventions before 1.42. The names that changed are read under both names.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from benchflow_traces.facts import (
    AgentRun,
    Evaluation,
    Fact,
    MemoryUse,
    Message,
    ModelCall,
    Reading,
    Tokens,
    ToolRun,
)
from benchflow_traces.messages import (
    as_text,
    bounded,
    from_json,
    instructions_of,
    message_of,
    messages_of,
    role_of,
)
from benchflow_traces.spans import Attribute, Attributes, Span, SpanEvent, first_count

from ._failures import failure_of

_MODEL: Final = frozenset({"chat", "generate_content", "text_completion"})
_AGENT: Final = frozenset({"invoke_agent", "invoke_workflow"})
_DETAILS: Final = "gen_ai.client.inference.operation.details"
_NUMBERED = re.compile(r"gen_ai\.(prompt|completion)\.(\d{1,4})\.(.{1,200})")


def read_span(span: Span) -> Reading | None:
    """Return the facts of a span with `gen_ai` attributes, else None."""
    operation = _operation(span)
    facts: tuple[Fact, ...] = tuple(_evaluations(span))
    if operation is not None and (fact := _fact(span, operation)) is not None:
        facts = (fact, *facts)
    if not facts:
        return None
    conversation = span.text("gen_ai.conversation.id")
    extra = {} if conversation is None else {"conversation": conversation}
    return Reading("gen_ai", facts, extra)


def _operation(span: Span) -> str | None:
    name = span.text("gen_ai.operation.name")
    if name is not None:
        return name
    if span.text("gen_ai.system", "gen_ai.provider.name") is None:
        return None
    # Before the operation had a name, only spans of models had these attributes.
    request = span.text("llm.request.type")
    if request == "completion":
        return "text_completion"
    return "chat" if span.text("gen_ai.request.model") is not None else None


def _fact(span: Span, operation: str) -> Fact | None:
    if operation in _MODEL:
        return _model_call(span)
    if operation == "execute_tool":
        return _tool_run(span)
    if operation in _AGENT:
        name = span.text("gen_ai.agent.name", "gen_ai.workflow.name", "agent_name")
        prompts = (m.text for m in messages_of(span.attributes.get("gen_ai.input.messages")))
        prompt = next((text for text in prompts if text), None)
        return AgentRun(name or "agent", prompt=prompt, failure=failure_of(span))
    if operation.endswith(("_memory", "_memory_store")):
        content = span.attributes.get("gen_ai.memory.content", span.attributes.get("tool_response"))
        text = None if content is None else as_text(content)
        return MemoryUse(operation, content=text, failure=failure_of(span))
    return None


def _model_call(span: Span) -> ModelCall:
    content = {**span.attributes, **_details_of(span.events)} if span.events else span.attributes
    asked = (
        *instructions_of(content.get("gen_ai.system_instructions")),
        *messages_of(content.get("gen_ai.input.messages")),
    )
    output = cast("Attribute", from_json(content.get("gen_ai.output.messages")))
    answers = messages_of(output)
    if not asked and not answers:
        asked, answers = _of_events(span.events)
    if not asked and not answers:
        asked, answers = _numbered(span.attributes)
    return ModelCall(
        model=span.text("gen_ai.response.model", "gen_ai.request.model"),
        input=asked,
        output=answers[0] if answers else None,
        finish=_finish(content, output),
        tokens=_tokens(span),
        failure=failure_of(span),
    )


def _tool_run(span: Span) -> ToolRun:
    arguments = span.attributes.get(
        "gen_ai.tool.call.arguments", span.attributes.get("tool_arguments")
    )
    result = span.attributes.get("gen_ai.tool.call.result", span.attributes.get("tool_response"))
    return ToolRun(
        id=span.text("gen_ai.tool.call.id") or "",
        name=span.text("gen_ai.tool.name") or span.name,
        arguments=from_json(arguments),
        result=None if result is None else as_text(result),
        failure=failure_of(span),
    )


def _tokens(span: Span) -> Tokens:
    known = span.attributes
    return Tokens(
        first_count(known, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        first_count(known, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        first_count(
            known, "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"
        ),
    )


def _finish(content: Attributes, output: Attribute) -> str | None:
    reasons = content.get("gen_ai.response.finish_reasons")
    if isinstance(reasons, str):
        reasons = cast("Attribute", from_json(reasons))
    if isinstance(reasons, list) and reasons:
        return str(cast("list[object]", reasons)[0])
    if isinstance(reasons, str):
        return reasons
    if isinstance(output, list) and output and isinstance(output[0], Mapping):
        reason = output[0].get("finish_reason")
        return None if reason is None else str(reason)
    return None


def _details_of(events: tuple[SpanEvent, ...]) -> Attributes:
    """Return the content that a program sends as one event beside the span."""
    nothing: Attributes = {}
    return next((event.attributes for event in events if event.name == _DETAILS), nothing)


def _of_events(events: tuple[SpanEvent, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages of one event each, as in 1.27 to 1.36."""
    asked: list[Message] = []
    answers: list[Message] = []
    for event in events:
        if event.name == "gen_ai.choice":
            answers.append(message_of(_body(event) | {"role": "assistant"}))
        elif event.name == "gen_ai.content.prompt":
            asked.extend(messages_of(event.attributes.get("gen_ai.prompt")))
        elif event.name == "gen_ai.content.completion":
            answers.extend(messages_of(event.attributes.get("gen_ai.completion")))
        elif event.name.startswith("gen_ai.") and event.name.endswith(".message"):
            role = event.name.split(".")[1]
            asked.append(message_of({"role": role} | _body(event)))
    return tuple(asked), tuple(answers)


def _body(event: SpanEvent) -> dict[str, Any]:
    """Return the fields of a message event: its body, or its attributes."""
    body = from_json(event.attributes.get("body", event.attributes.get("event_body")))
    fields = dict(
        cast("Mapping[str, Any]", body if isinstance(body, Mapping) else event.attributes)
    )
    message = from_json(fields.get("message"))
    if isinstance(message, Mapping):
        fields |= cast("Mapping[str, Any]", message)
    if isinstance(fields.get("tool_calls"), str):
        fields["tool_calls"] = from_json(fields["tool_calls"])
    return fields


def _numbered(attributes: Attributes) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages of attributes such as `gen_ai.prompt.0.content`."""
    rows: dict[str, dict[int, dict[str, Any]]] = {"prompt": {}, "completion": {}}
    for key, value in attributes.items():
        if match := _NUMBERED.fullmatch(key):
            side, number, name = match.groups()
            rows[side].setdefault(int(number), {})[name] = value
    asked, answers = (
        tuple(_numbered_message(row) for _, row in sorted(rows[side].items()))
        for side in ("prompt", "completion")
    )
    return asked, answers


def _numbered_message(row: Mapping[str, Any]) -> Message:
    calls: dict[int, dict[str, Any]] = {}
    for key, value in row.items():
        head, _, rest = key.partition(".")
        number, _, name = rest.partition(".")
        if head == "tool_calls" and number.isascii() and number.isdigit() and len(number) < 5:
            calls.setdefault(int(number), {})[name] = value
    fields = {name: row[name] for name in ("content", "tool_call_id") if name in row}
    role = row.get("role", "user")
    if calls:
        fields["tool_calls"] = [call for _, call in sorted(calls.items())]
        role = "assistant"
    fields["content"] = _content(fields.get("content"))
    return message_of({"role": role_of(role), **fields})


def _content(value: object) -> object:
    """Return the parts that some programs send as JSON inside the text."""
    document = from_json(value) if isinstance(value, str) and value.startswith("[{") else None
    return cast("object", document) if isinstance(document, list) else value


def _evaluations(span: Span) -> Iterator[Evaluation]:
    for attributes in (span.attributes, *[event.attributes for event in span.events]):
        name = attributes.get("gen_ai.evaluation.name")
        if isinstance(name, str):
            score = attributes.get("gen_ai.evaluation.score.value")
            known = isinstance(score, int | float) and not isinstance(score, bool)
            label = attributes.get("gen_ai.evaluation.score.label")
            reason = attributes.get("gen_ai.evaluation.explanation")
            yield Evaluation(
                name=name[:200],
                score=float(cast("float", score)) if known else None,
                label=None if label is None else bounded(as_text(label)),
                explanation=None if reason is None else bounded(as_text(reason)),
            )
