"""Write OpenAI Responses streams."""

import json
import time
from collections.abc import Iterable, Iterator

from benchflow_contracts import Usage

from benchflow_gateway.documents import Document
from benchflow_gateway.sse import Event

from .custom import unwrap_custom
from .delta import AnswerEnd, AnswerStart, ArgumentsDelta, CallStart, Delta, TextDelta, ThoughtDelta
from .prompt import Tool, name_in


class ResponsesWriter:
    """Writes one output item after the other."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._response: Document = {}
        self._output: list[Document] = []
        self._item: Document | None = None
        self._text = ""
        self._number = 0

    def write(self, delta: Delta) -> Iterator[Event]:
        """Yield the events for `delta`."""
        match delta:
            case AnswerStart():
                yield from self._begin(delta)
            case TextDelta():
                yield from self._say(delta.text)
            case ThoughtDelta():
                yield from self._think(delta.text)
            case CallStart():
                yield from self._close()
                yield from self._open(self._call_item(delta))
            case ArgumentsDelta():
                yield from self._argue(delta.text)
            case AnswerEnd():
                yield from self._close()
                yield from self._end(delta)

    def _begin(self, start: AnswerStart) -> Iterator[Event]:
        self._response = {
            "id": f"resp_{start.id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": start.model,
            "error": None,
            "incomplete_details": None,
        }
        started: Document = {**self._response, "status": "in_progress", "output": [], "usage": None}
        yield self._event("response.created", {"response": started})
        yield self._event("response.in_progress", {"response": started})

    def _say(self, text: str) -> Iterator[Event]:
        if self._item is None or self._item["type"] != "message":
            yield from self._close()
            yield from self._open({"type": "message", "role": "assistant", "content": []})
            yield self._event(
                "response.content_part.added", {**self._part(), "part": _text_part("")}
            )
        self._text += text
        yield self._event("response.output_text.delta", {**self._part(), "delta": text})

    def _think(self, text: str) -> Iterator[Event]:
        if self._item is None or self._item["type"] != "reasoning":
            yield from self._close()
            yield from self._open({"type": "reasoning", "summary": []})
            part = {**self._at(), "summary_index": 0, "part": _summary("")}
            yield self._event("response.reasoning_summary_part.added", part)
        self._text += text
        at = {**self._at(), "summary_index": 0, "delta": text}
        yield self._event("response.reasoning_summary_text.delta", at)

    def _call_item(self, call: CallStart) -> Document:
        tool = self._tools.get(call.name)
        if tool is not None and tool.custom:
            item: Document = {"type": "custom_tool_call", "input": ""}
        else:
            item = {"type": "function_call", "arguments": ""}
        item |= {"call_id": call.id, "name": call.name}
        if tool is not None and tool.namespace:
            inner = call.name.removeprefix(name_in(tool.namespace, ""))
            item |= {"name": inner, "namespace": tool.namespace}
        return item

    def _argue(self, text: str) -> Iterator[Event]:
        self._text += text
        # The free text of a custom tool is inside JSON, so it is sent when it is complete.
        if self._item is not None and self._item["type"] == "function_call":
            at = {**self._at(), "delta": text}
            yield self._event("response.function_call_arguments.delta", at)

    def _open(self, item: Document) -> Iterator[Event]:
        prefix = {"message": "msg", "reasoning": "rs"}.get(item["type"], "fc")
        item_id = f"{prefix}_{self._response.get('id')}_{len(self._output)}"
        self._item = {"id": item_id, "status": "in_progress", **item}
        self._text = ""
        at = {"output_index": len(self._output), "item": self._item}
        yield self._event("response.output_item.added", at)

    def _close(self) -> Iterator[Event]:
        item = self._item
        if item is None:
            return
        kind = item["type"]
        if kind == "message":
            yield self._event("response.output_text.done", {**self._part(), "text": self._text})
            part = {**self._part(), "part": _text_part(self._text)}
            yield self._event("response.content_part.done", part)
            item = {**item, "content": [_text_part(self._text)]}
        elif kind == "reasoning":
            at = {**self._at(), "summary_index": 0}
            yield self._event("response.reasoning_summary_text.done", {**at, "text": self._text})
            part = {**at, "part": _summary(self._text)}
            yield self._event("response.reasoning_summary_part.done", part)
            item = {**item, "summary": [_summary(self._text)]}
        elif kind == "function_call":
            at = {**self._at(), "arguments": self._text}
            yield self._event("response.function_call_arguments.done", at)
            item = {**item, "arguments": self._text}
        else:
            item = {**item, "input": unwrap_custom(self._text)}
            done = {**self._at(), "input": item["input"]}
            yield self._event("response.custom_tool_call_input.done", done)
        done_item = {**item, "status": "completed"}
        at = {"output_index": len(self._output), "item": done_item}
        self._output.append(done_item)
        self._item = None
        yield self._event("response.output_item.done", at)

    def _end(self, end: AnswerEnd) -> Iterator[Event]:
        status, details = "completed", None
        if end.stop in {"length", "refusal"}:
            reason = "max_output_tokens" if end.stop == "length" else "content_filter"
            status, details = "incomplete", {"reason": reason}
        response = {
            **self._response,
            "status": status,
            "incomplete_details": details,
            "output": self._output,
            "usage": _usage(end.usage),
        }
        yield self._event(f"response.{status}", {"response": response})

    def _at(self) -> Document:
        item = self._item or {}
        return {"item_id": item.get("id"), "output_index": len(self._output)}

    def _part(self) -> Document:
        return {**self._at(), "content_index": 0}

    def _event(self, name: str, data: Document) -> Event:
        event = {"type": name, "sequence_number": self._number, **data}
        self._number += 1
        return Event(name, json.dumps(event, ensure_ascii=False))


def _text_part(text: str) -> Document:
    return {"type": "output_text", "text": text, "annotations": []}


def _summary(text: str) -> Document:
    return {"type": "summary_text", "text": text}


def _usage(usage: Usage) -> Document:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
