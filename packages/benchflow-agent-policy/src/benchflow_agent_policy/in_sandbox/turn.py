"""One prompt turn: the model acts until it has nothing more to do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from .completion import Completion, WantedCall
from .faults import ContextFullError, ToolError, TurnCancelledError
from .model import Model
from .session import Session, tool_message
from .settings import Settings
from .tool import Outcome, Tool
from .wire import Json, Wire, as_object

_TITLE_CHARS = 200
_CUT = "Not run: the reply was cut before its end."
_OPEN = "Not finished: the turn was ended."
_GATE: list[Json] = [
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
    """Runs one prompt. Messages are only ever added, so that the model's prefix stays."""

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
        """Play the turn; return the result of `session/prompt`.

        Raises:
            TurnFailedError: The model cannot be used. What was said so far is kept.
        """
        self._session.messages.append({"role": "user", "content": text})
        try:
            reason = self._loop()
        except TurnCancelledError:
            reason = "cancelled"
        except ContextFullError:
            reason = "max_tokens"
        finally:
            self._session.settle(_OPEN)
        return {"stopReason": reason, **self._report()}

    def _loop(self) -> str:
        limit = self._settings.context_tokens
        while self._usage.calls < self._settings.max_calls:
            if limit is not None and self._session.used_tokens >= limit:
                return "max_tokens"
            completion = self._next()
            if completion.finish_reason == "length":
                self._session.settle(_CUT)
                return "max_tokens"
            if completion.finish_reason == "content_filter":
                return "refusal"
            if not completion.calls:
                return "end_turn"
            for call in completion.calls:
                result = self._act(call)
                self._session.messages.append(tool_message(call.id, result))
        return "max_turn_requests"

    def _next(self) -> Completion:
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

    def _act(self, call: WantedCall) -> str:
        """Run one tool call; return what the model is told."""
        self._wire.check()
        tool = self._tools.get(call.name)
        arguments = _arguments(call.arguments)
        if tool is not None and not tool.shown and arguments is not None:
            return _run(tool, arguments).text
        shown = self._begin(call, tool, arguments)
        try:
            outcome = self._outcome(shown, call, tool, arguments)
        except BaseException:
            self._end(shown, Outcome(_OPEN, failed=True))
            raise
        self._end(shown, outcome)
        return outcome.text

    def _outcome(
        self, shown: str, call: WantedCall, tool: Tool | None, arguments: Json | None
    ) -> Outcome:
        if tool is None:
            return Outcome(f"There is no tool {call.name!r:.80}.", failed=True)
        if arguments is None:
            return Outcome("The arguments are no JSON object.", failed=True)
        if tool.gated and self._session.mode == "ask" and not self._allowed(shown, call):
            return Outcome("The user did not allow this.", failed=True)
        return _run(tool, arguments)

    def _allowed(self, shown: str, call: WantedCall) -> bool:
        params = {
            "sessionId": self._session.id,
            "toolCall": {"toolCallId": shown, "title": _title(call, _arguments(call.arguments))},
            "options": _GATE,
        }
        reply = self._wire.ask("session/request_permission", params)
        return as_object(reply.get("outcome")).get("optionId") == "allow"

    def _begin(self, call: WantedCall, tool: Tool | None, arguments: Json | None) -> str:
        self._session.tool_calls += 1
        shown = f"call-{self._session.tool_calls}"
        self._update(
            "tool_call",
            toolCallId=shown,
            title=_title(call, arguments),
            kind=tool.kind if tool else "other",
            status="in_progress",
            rawInput=arguments if arguments is not None else {"text": call.arguments},
            _meta={"toolName": call.name, "modelCallId": call.id},
        )
        return shown

    def _end(self, shown: str, outcome: Outcome) -> None:
        block = {"type": "content", "content": {"type": "text", "text": outcome.text}}
        self._update(
            "tool_call_update",
            toolCallId=shown,
            status="failed" if outcome.failed else "completed",
            content=[block],
            rawOutput=outcome.raw,
        )

    def _update(self, kind_of_update: str, **fields: object) -> None:
        body = {"sessionUpdate": kind_of_update, **fields}
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


def _run(tool: Tool, arguments: Json) -> Outcome:
    try:
        return tool.run(arguments)
    except ToolError as error:
        return Outcome(str(error), failed=True)


def _arguments(text: str) -> Json | None:
    try:
        arguments = as_object(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return None
    return arguments if arguments or not text.strip("{} \t\r\n") else None


def _title(call: WantedCall, arguments: Json | None) -> str:
    command = (arguments or {}).get("command")
    text = command if isinstance(command, str) and command.strip() else call.name
    return text.strip().partition("\n")[0][:_TITLE_CHARS]
