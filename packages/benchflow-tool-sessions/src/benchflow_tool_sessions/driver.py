"""Between the caller of a session and the agent's turn: requests in, results out."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchflow_contracts import Sandbox

from .results import SessionEndedError, SessionLimits, ToolResult, ToolSpec

State = Literal["starting", "open", "between", "ended"]
"""`between`: a turn has ended, and the rollout may begin another one."""


@dataclass(slots=True)
class ToolRequest:
    """A tool call of the caller. `answer` has its result."""

    name: str
    arguments: Mapping[str, Any]
    answer: "asyncio.Future[ToolResult]"


@dataclass(slots=True)
class SubmitRequest:
    """The end of a turn, with the last message."""

    message: str


@dataclass(slots=True)
class KeepOpenRequest:
    """A sign that the caller acts elsewhere. The time without a call begins again."""


Request = ToolRequest | SubmitRequest | KeepOpenRequest


@dataclass
class Driver:
    """Passes the requests of one caller to the turns of one rollout. Use it on one event loop."""

    limits: SessionLimits
    state: State = "starting"
    prompt: str = ""
    tools: Sequence[ToolSpec] = ()
    turns: int = 0
    """The turns that began."""
    calls: int = 0
    """The tool calls that ended."""
    reason: str | None = None
    """Why the session ended before its last submit."""
    sandbox: Sandbox | None = None
    """The sandbox in which the tools act, while a turn is open."""
    on_turn_end: Callable[[], None] | None = None
    """Called when a turn ends, before the result is graded."""
    _requests: "asyncio.Queue[Request]" = field(default_factory=asyncio.Queue["Request"])
    _current: "Request | None" = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def begin_turn(self, prompt: str) -> None:
        """Let the caller make calls for a prompt."""
        self.prompt, self.turns = prompt, self.turns + 1
        self._set("open")

    def end_turn(self) -> None:
        """Let the caller wait for the next prompt or for the end."""
        self._set("between")

    def end(self, reason: str | None) -> None:
        """Refuse all further requests. Idempotent; the first reason counts."""
        self.reason = self.reason or reason
        self._set("ended")
        self._refuse(self._current)
        while not self._requests.empty():
            self._refuse(self._requests.get_nowait())

    def ended_error(self) -> SessionEndedError:
        """Return the error for a request after the end."""
        why = f": {self.reason}" if self.reason else ""
        return SessionEndedError(f"the session has ended{why}")

    async def next_request(self) -> Request:
        """Return the next request of the caller."""
        self._current = request = await self._requests.get()
        return request

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Pass a tool call to the open turn, and return its result.

        Raises:
            SessionEndedError: The session has ended, or it ends before the call has a result.
        """
        if self.state != "open":
            raise self.ended_error()
        answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(ToolRequest(name, arguments, answer))
        return await answer

    def submit(self, message: str) -> None:
        """End the open turn.

        Raises:
            SessionEndedError: The session has ended.
        """
        if self.state != "open":
            raise self.ended_error()
        self._requests.put_nowait(SubmitRequest(message))

    def keep_open(self) -> None:
        """Begin the time without a call again, if a turn is open and waits for a call."""
        if self.state == "open" and self._requests.empty():
            self._requests.put_nowait(KeepOpenRequest())

    async def wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait until a condition holds. It is checked at each change of the state."""
        while not is_reached():
            await self._changed.wait()

    def _refuse(self, request: "Request | None") -> None:
        if isinstance(request, ToolRequest) and not request.answer.done():
            request.answer.set_exception(self.ended_error())
            # The caller may have gone away.
            request.answer.exception()

    def _set(self, state: State) -> None:
        self.state = state
        if state in {"between", "ended"} and self.on_turn_end is not None:
            self.on_turn_end()
        self._changed.set()
        self._changed = asyncio.Event()
