"""Deterministic policies: what the scripted model answers."""

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

from .exchange import ModelReply, ModelRequest, ToolUse

_WORD = re.compile(r"word-[0-9a-f]{8}")

Policy = Callable[[ModelRequest], ModelReply]


def book_the_review(request: ModelRequest) -> ModelReply:
    """Solve the task `book-the-review-room`: ask which event, and change the answer's event."""
    events = ["evt-10", "evt-11", "evt-12"]
    seen = request.tool_results
    if not seen:
        ask = {"question": "Which review with Dana?", "options": events}
        return ModelReply(text="Only you can tell.", tools=(ToolUse("ask_user", ask),))
    if len(seen) == 1:
        chosen = next((event for event in events if event in seen[0]), events[0])
        command = f"claw-gcal update {chosen} --add-attendee room-maple@harborlight.example"
        return ModelReply(tools=(ToolUse("shell", {"command": command}),))
    return ModelReply(text="Booked.")


class WriteOneFile:
    """Writes one file with a tool of the agent's own, then says that it is done.

    Prefers a tool that takes a path and a content, and falls back to a shell, also when
    that tool wants an absolute path: the policy does not know where it is.
    A call without tools (a title, a summary) gets a short text. A prompt that speaks of a
    question tool is answered with a question, by whichever tool takes `questions`,
    or `question` and `options`.
    """

    def __init__(self, path: str, content: str) -> None:
        self._path = path
        self._content = content

    def __call__(self, request: ModelRequest) -> ModelReply:
        if not request.tools:
            return ModelReply(text="A title")
        if request.tool_results:
            return self._after(request)
        if "question tool" in request.user_text:
            return self._ask(request.tools)
        use = self._by_writing(request.tools) or self._by_shell(request.tools)
        if use is None:
            return ModelReply(text="I have no tool that writes.")
        return ModelReply(text="I will write the file.", tools=(use,))

    def _after(self, request: ModelRequest) -> ModelReply:
        result = request.tool_results[-1]
        refused = len(request.tool_results) == 1 and "must be absolute" in result
        shell = self._by_shell(request.tools) if refused else None
        if shell is not None:
            return ModelReply(text="I will use the shell.", tools=(shell,))
        return ModelReply(text=f"Done: {result[:120]}")

    def _ask(self, tools: dict[str, dict[str, Any]]) -> ModelReply:
        options = [
            {"label": "Tea", "description": "Hot"},
            {"label": "Coffee", "description": "Hotter"},
            {"label": "Cocoa", "description": "Sweet"},
        ]
        question = {
            "id": "drink",
            "header": "Drink",
            "question": "Which drink?",
            "options": options,
            "multiSelect": False,
        }
        for name, schema in tools.items():
            item = schema.get("properties", {}).get("questions", {}).get("items", {})
            known = item.get("properties")
            if known:
                asked = {key: value for key, value in question.items() if key in known}
                return ModelReply(tools=(ToolUse(name, {"questions": [asked]}),))
            plain = schema.get("properties", {})
            if "question" in plain and "options" in plain:
                asked = {"question": question["question"], "options": ["Tea", "Coffee"]}
                return ModelReply(tools=(ToolUse(name, asked),))
        return ModelReply(text="I have no tool that asks.")

    def _by_writing(self, tools: dict[str, dict[str, Any]]) -> ToolUse | None:
        for name, schema in tools.items():
            properties = schema.get("properties", {})
            path = next((key for key in properties if "path" in key.lower()), None)
            if path and "content" in properties and "write" in name.lower():
                return ToolUse(name, {path: self._path, "content": self._content})
        return None

    def _by_shell(self, tools: dict[str, dict[str, Any]]) -> ToolUse | None:
        line = f"printf %s {shlex.quote(self._content)} > {shlex.quote(self._path)}"
        for name, schema in tools.items():
            properties = schema.get("properties", {})
            for key in ("command", "cmd"):
                if key in properties:
                    as_list = properties[key].get("type") == "array"
                    return ToolUse(name, {key: ["sh", "-c", line] if as_list else line})
        return None


class AnswersProbes(WriteOneFile):
    """Does what `bench agent probe` asks for, and knows exactly what its context holds."""

    def __call__(self, request: ModelRequest) -> ModelReply:
        if "every code word" in request.user_text:
            words = sorted(set(_WORD.findall(json.dumps(request.raw))))
            return ModelReply(text=f"You told me: {' '.join(words)}")
        if "Remember the code word" in request.user_text:
            return ModelReply(text="I will remember it.")
        return super().__call__(request)
