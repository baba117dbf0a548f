"""Steps and tool calls that are not finished."""

from dataclasses import dataclass, field
from typing import Any

from acp.schema import (
    ContentToolCallContent,
    FileEditToolCallContent,
    TextContentBlock,
    ToolCallProgress,
    ToolCallStart,
)
from benchflow_contracts import Answer, Ask, Observation, Step, StopReason, ToolCall, Usage
from benchflow_contracts.step import ToolStatus
from pydantic import BaseModel

from .framing import as_object
from .limits import TEXT_CHARS, TITLE_CHARS, TOOL_CALLS, cap_text, cap_value

_DONE = frozenset({"completed", "failed"})


@dataclass(slots=True)
class ToolDraft:
    """The data of one tool call so far."""

    id: str
    title: str = ""
    kind: str = "other"
    name: str | None = None
    raw_input: Any = None
    status: ToolStatus = "pending"
    content: str = ""
    raw_output: Any = None
    diffs: list[object] = field(default_factory=list[object])

    @property
    def is_done(self) -> bool:
        """Whether the call has a result."""
        return self.status in _DONE

    def merge(self, update: ToolCallStart | ToolCallProgress) -> None:
        """Copy every field that the update sets."""
        self.title = cap_text(update.title, TITLE_CHARS) if update.title else self.title
        self.kind = update.kind or self.kind
        self.status = update.status or self.status
        self.name = _tool_name(update.field_meta) or self.name
        if update.raw_input is not None:
            self.raw_input = cap_value(update.raw_input)
        if update.raw_output is not None:
            self.raw_output = cap_value(update.raw_output)
        if update.content is not None:
            self._take_content(update.content)

    def _take_content(self, items: list[Any]) -> None:
        texts: list[str] = []
        self.diffs = []
        for item in items:
            if isinstance(item, ContentToolCallContent):
                texts.append(block_text(item.content))
            elif isinstance(item, FileEditToolCallContent):
                diff = {"path": item.path, "old_text": item.old_text, "new_text": item.new_text}
                self.diffs.append(cap_value(diff))
            else:
                texts.append(f"[terminal {item.terminal_id}]")
        self.content = cap_text("\n".join(texts))

    def call(self) -> ToolCall:
        """Return the request of the call."""
        return ToolCall(
            id=self.id,
            title=self.title or self.id,
            kind=self.kind,
            name=self.name,
            raw_input=self.raw_input,
        )

    def observation(self) -> Observation:
        """Return the result of the call. Diffs go into `raw_output` if the agent sent none."""
        raw = self.raw_output
        if raw is None and self.diffs:
            raw = {"diffs": self.diffs}
        return Observation(
            tool_call_id=self.id, status=self.status, content=self.content, raw_output=raw
        )


@dataclass(slots=True)
class StepDraft:
    """The data of the open step."""

    started_at: float
    prompt: str | None = None
    answer: Answer | None = None
    reasoning: str = ""
    message: str = ""
    message_ids: dict[str, str] = field(default_factory=dict[str, str])
    calls: dict[str, ToolDraft] = field(default_factory=dict[str, ToolDraft])
    result_ids: dict[str, None] = field(default_factory=dict[str, None])
    """The ids of the tool calls that reported a result in this step, in order."""
    has_result: bool = False
    has_begun: bool = False
    """Whether the agent began to think, to write or to act in this step."""
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    finished_at: float = 0.0

    @property
    def has_opener(self) -> bool:
        """Whether a prompt or an answer opened the step."""
        return self.prompt is not None or self.answer is not None

    def add_text(self, part: str, text: str, message_id: str | None) -> None:
        """Append a chunk to `reasoning` or `message`. A new message id is a new paragraph."""
        known = self.message_ids.get(part)
        so_far: str = getattr(self, part)
        if message_id is not None:
            if known is not None and known != message_id and so_far:
                text = "\n\n" + text
            self.message_ids[part] = message_id
        space = TEXT_CHARS - len(so_far)
        if len(text) > space:
            self.meta["cut_chars"] = self.meta.get("cut_chars", 0) + len(text) - max(0, space)
        setattr(self, part, so_far + text[: max(0, space)])

    def add_tool(self, tool: ToolDraft, *, new: bool) -> None:
        """Add a tool call that began in this step, or whose result arrived in it."""
        if new:
            if len(self.calls) >= TOOL_CALLS:
                self.meta["cut_tool_calls"] = self.meta.get("cut_tool_calls", 0) + 1
                return
            self.calls[tool.id] = tool
        if tool.status in _DONE:
            self.result_ids[tool.id] = None
            self.has_result = True

    def count(self, key: str) -> None:
        """Count an item that was left out, under `key` of the step's `meta`."""
        self.meta[key] = self.meta.get(key, 0) + 1

    def finish(
        self,
        step_id: str,
        tools: dict[str, ToolDraft],
        *,
        role: str,
        skills: tuple[str, ...],
        ask: Ask | None = None,
        stop_reason: StopReason | None = None,
        usage: Usage | None = None,
    ) -> Step:
        """Return the step. At the end of a turn, unfinished calls show their partial output."""
        last = stop_reason is not None or "incomplete" in self.meta
        open_calls = [
            call
            for call in self.calls.values()
            if last
            and call.id not in self.result_ids
            and (call.content or call.raw_output is not None)
        ]
        results = [tools[key] for key in self.result_ids if key in tools]
        return Step(
            id=step_id,
            role=role,
            skills=skills,
            prompt=self.prompt,
            answer=self.answer,
            reasoning=self.reasoning,
            message=self.message,
            tool_calls=tuple(tool.call() for tool in self.calls.values()),
            observations=tuple(tool.observation() for tool in (*results, *open_calls)),
            ask=ask,
            usage=usage,
            stop_reason=stop_reason,
            meta=dict(self.meta),
            started_at=self.started_at,
            finished_at=max(self.started_at, self.finished_at),
        )


def block_text(block: BaseModel) -> str:
    """Return a content block as text. Other blocks become the name of their type."""
    if isinstance(block, TextContentBlock):
        return block.text
    return f"[{getattr(block, 'type', 'block')}]"


def _tool_name(meta: dict[str, Any] | None) -> str | None:
    """Return the tool's own name, which agents put at different places in `_meta`."""
    top = as_object(meta)
    for place in (top, *map(as_object, top.values())):
        for key in ("toolName", "tool_name"):
            name = place.get(key)
            if isinstance(name, str):
                return name[:TITLE_CHARS]
    return None
