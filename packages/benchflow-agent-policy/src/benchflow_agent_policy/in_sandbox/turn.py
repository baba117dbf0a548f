"""One prompt turn: the model acts until it calls no more tools."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .completion import Completion, ModelToolCall
from .errors import ContextFullError, ToolError, TurnCancelledError
from .model import Model
from .session import Session, tool_message
from .settings import Settings
from .tool import Tool, ToolResult
from .wire import Json, Wire, as_object

_TITLE_CHARS = 200
_NOT_RUN = "Not run: the reply was cut before its end."
_NOT_FINISHED = "Not finished: the turn was ended."
_PERMISSION_OPTIONS: list[Json] = [
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
]


@dataclass(slots=True)
class _Usage:
    calls: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0

    def add(self, completion: Completion) -> None:
        self.calls += 1
        self.input += completion.input_tokens
        self.output += completion.output_tokens
        self.cached += completion.cached_tokens


class Turn:
    """Runs one prompt. Messages are only appended, so the prompt prefix never changes."""

    def __init__(
        self,
        wire: Wire,
        settings: Settings,
        session: Session,
        model: Model,
        tools: Mapping[str, Tool],
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._session = session
        self._model = model
        self._tools = tools
        self._usage = _Usage()

    def run(self, text: str) -> Json:
        """Run the turn; return the result of `session/prompt`.

        Raises:
            TurnFailedError: The model failed. The messages so far stay in the session.
        """
        self._session.messages.append({"role": "user", "content": text})
        try:
            reason = self._loop()
        except TurnCancelledError:
            reason = "cancelled"
        except ContextFullError:
            reason = "max_tokens"
        finally:
            self._session.close_tool_calls(_NOT_FINISHED)
        return {"stopReason": reason, **self._report()}

    def _loop(self) -> str:
        limit = self._settings.context_tokens
        while self._usage.calls < self._settings.max_calls:
            if limit is not None and self._session.used_tokens >= limit:
                return "max_tokens"
            completion = self._call_model()
            if completion.finish_reason == "length":
                self._session.close_tool_calls(_NOT_RUN)
                return "max_tokens"
            if completion.finish_reason == "content_filter":
                return "refusal"
            if not completion.calls:
                return "end_turn"
            for call in completion.calls:
                result = self._run_call(call)
                self._session.messages.append(tool_message(call.id, result))
        return "max_turn_requests"

    def _call_model(self) -> Completion:
        session = self._session
        tools = [tool.definition() for tool in self._tools.values()]
        completion = self._model.complete(session.messages, tools, session.options, session.chain)
        session.messages.append(completion.message)
        session.used_tokens = completion.input_tokens + completion.output_tokens
        self._usage.add(completion)
        message_id = f"message-{len(session.messages)}"
        for kind, text in (
            ("agent_thought_chunk", completion.reasoning),
            ("agent_message_chunk", completion.text),
        ):
            if text:
                content = {"type": "text", "text": text}
                self._update(kind, content=content, messageId=message_id)
        return completion

    def _run_call(self, call: ModelToolCall) -> str:
        """Run one tool call; return the text for the model."""
        self._wire.raise_if_cancelled()
        tool = self._tools.get(call.name)
        arguments = _arguments(call.arguments)
        if tool is not None and not tool.reported and arguments is not None:
            return _run(tool, arguments).text
        call_id = self._begin(call, tool, arguments)
        try:
            result = self._result(call_id, call, tool, arguments)
        except BaseException:
            self._end(call_id, ToolResult(_NOT_FINISHED, failed=True))
            raise
        self._end(call_id, result)
        return result.text

    def _result(
        self, call_id: str, call: ModelToolCall, tool: Tool | None, arguments: Json | None
    ) -> ToolResult:
        if tool is None:
            return ToolResult(f"There is no tool {call.name!r:.80}.", failed=True)
        if arguments is None:
            return ToolResult("The arguments are not a JSON object.", failed=True)
        if (
            tool.needs_permission
            and self._session.mode == "ask"
            and not self._is_allowed(call_id, call)
        ):
            return ToolResult("The user did not allow this.", failed=True)
        return _run(tool, arguments)

    def _is_allowed(self, call_id: str, call: ModelToolCall) -> bool:
        params = {
            "sessionId": self._session.id,
            "toolCall": {"toolCallId": call_id, "title": _title(call, _arguments(call.arguments))},
            "options": _PERMISSION_OPTIONS,
        }
        reply = self._wire.ask("session/request_permission", params)
        return as_object(reply.get("outcome")).get("optionId") == "allow"

    def _begin(self, call: ModelToolCall, tool: Tool | None, arguments: Json | None) -> str:
        self._session.tool_calls += 1
        call_id = f"call-{self._session.tool_calls}"
        self._update(
            "tool_call",
            toolCallId=call_id,
            title=_title(call, arguments),
            kind=tool.kind if tool else "other",
            status="in_progress",
            rawInput=arguments if arguments is not None else {"text": call.arguments},
            _meta={"toolName": call.name, "modelCallId": call.id},
        )
        return call_id

    def _end(self, call_id: str, result: ToolResult) -> None:
        block = {"type": "content", "content": {"type": "text", "text": result.text}}
        self._update(
            "tool_call_update",
            toolCallId=call_id,
            status="failed" if result.failed else "completed",
            content=[block],
            rawOutput=result.raw,
        )

    def _update(self, update_type: str, **fields: object) -> None:
        body = {"sessionUpdate": update_type, **fields}
        self._wire.send(
            method="session/update", params={"sessionId": self._session.id, "update": body}
        )

    def _report(self) -> Json:
        usage = self._usage
        return {
            "usage": {
                "totalTokens": usage.input + usage.output,
                "inputTokens": usage.input,
                "outputTokens": usage.output,
                "cachedReadTokens": usage.cached,
            },
            "_meta": {"modelCalls": usage.calls, "tokenChain": self._session.chain.report()},
        }


def _run(tool: Tool, arguments: Json) -> ToolResult:
    try:
        return tool.run(arguments)
    except ToolError as error:
        return ToolResult(str(error), failed=True)


def _arguments(text: str) -> Json | None:
    try:
        arguments = as_object(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return None
    return arguments if arguments or not text.strip("{} \t\r\n") else None


def _title(call: ModelToolCall, arguments: Json | None) -> str:
    command = (arguments or {}).get("command")
    text = command if isinstance(command, str) and command.strip() else call.name
    return text.strip().partition("\n")[0][:_TITLE_CHARS]
