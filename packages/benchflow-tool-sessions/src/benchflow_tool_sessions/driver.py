"""Between the caller of a session and the agent's turn: requests in, results out."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from benchflow_contracts import Ask, Sandbox

from .results import SessionClosedError, SessionEndedError, SessionLimits, ToolResult, ToolSpec

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
class ForkRequest:
    """A request to fork. `answer` says whether the session was forked."""

    ask: Ask
    answer: "asyncio.Future[bool]"


@dataclass(slots=True, eq=False)
class BorrowedAction:
    """An action of a borrower of the sandbox: one step of the record."""

    name: str
    arguments: Mapping[str, Any]
    began: float
    result: ToolResult | None = None
    """`None` while it runs, or if the end of the turn cut it."""


@dataclass(slots=True)
class KeepOpenRequest:
    """A sign that the caller acts elsewhere. The time without a call begins again."""


Request = ToolRequest | SubmitRequest | ForkRequest | BorrowedAction | KeepOpenRequest


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
    running_actions: "list[BorrowedAction]" = field(default_factory=list["BorrowedAction"])
    """The actions of a borrower that have no result."""
    key: tuple[str, str] | None = None
    """The fork and the child that this driver belongs to; `None` at the root."""
    children: "list[Driver]" = field(default_factory=list["Driver"])
    """The drivers of the sessions into which this one was forked."""
    has_verdict: bool = False
    """Whether the world has ended. The verdict is there, if the session gets one."""
    _is_closed: bool = False
    _closing: asyncio.Timeout | None = None
    _requests: "asyncio.Queue[Request]" = field(default_factory=asyncio.Queue["Request"])
    _current: "Request | None" = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def leaves(self) -> "list[Driver]":
        """This driver, or those below that were not forked."""
        return [leaf for each in self.children for leaf in each.leaves] or [self]

    @property
    def is_over(self) -> bool:
        """Whether no world of the session or of its children is left."""
        return all(leaf.has_verdict for leaf in self.leaves)

    def begin_turn(self, prompt: str) -> None:
        """Let the caller make calls for a prompt.

        Raises:
            SessionClosedError: The session was closed.
        """
        if self._is_closed:
            raise self._closed_error()
        self.prompt, self.turns = prompt, self.turns + 1
        self._set("open")

    def end_turn(self) -> None:
        """Let the caller wait for the next prompt or for the end. Refuse a call that was cut."""
        self._set("between")
        self._refuse(self._current)

    def end(self, reason: str | None) -> None:
        """Refuse all further requests. Idempotent; the first reason counts."""
        self.reason = self.reason or reason
        self._set("ended")
        self._refuse(self._current)
        while not self._requests.empty():
            self._refuse(self._requests.get_nowait())

    def close(self, reason: str) -> None:
        """End the session without a verdict, unless its result is graded already."""
        self._is_closed = True
        self.end(reason)
        if self._closing is not None and self._closing.when() is None:
            self._closing.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def closable(self) -> AsyncGenerator[None]:
        """Let `close` end what runs inside this block.

        Raises:
            SessionClosedError: The session was closed.
        """
        self._closing = scope = asyncio.timeout(None)
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise self._closed_error() from error
        finally:
            self._closing = None

    def _closed_error(self) -> SessionClosedError:
        return SessionClosedError(self.reason or "the session was closed")

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

    async def fork(self, ask: Ask) -> bool:
        """Ask for a fork of the open turn. Return whether the session was forked, and so ended.

        Raises:
            SessionEndedError: The session has ended.
        """
        if self.state != "open":
            raise self.ended_error()
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(ForkRequest(ask, answer))
        return await answer

    def begin_action(self, name: str, arguments: Mapping[str, Any]) -> BorrowedAction:
        """Note an action of a borrower of the sandbox, which runs until `end_action`."""
        action = BorrowedAction(name, arguments, time.time())
        self.running_actions.append(action)
        return action

    def end_action(self, action: BorrowedAction, result: ToolResult) -> None:
        """Pass the action with its result to the record, if a turn is open."""
        if action in self.running_actions:
            self.running_actions.remove(action)
            action.result = result
            if self.state == "open":
                self._requests.put_nowait(action)

    def keep_open(self) -> None:
        """Begin the time without a call again, if a turn is open and waits for a call."""
        if self.state == "open" and self._requests.empty():
            self._requests.put_nowait(KeepOpenRequest())

    async def wait(self, is_reached: Callable[[], bool]) -> None:
        """Wait until a condition holds. It is checked at each change of the state."""
        while not is_reached():
            await self._changed.wait()

    def _refuse(self, request: "Request | None") -> None:
        if isinstance(request, ToolRequest | ForkRequest) and not request.answer.done():
            request.answer.set_exception(self.ended_error())
            # The caller may have gone away.
            request.answer.exception()

    def _set(self, state: State) -> None:
        self.state = state
        if state in {"between", "ended"} and self.on_turn_end is not None:
            self.on_turn_end()
        self._changed.set()
        self._changed = asyncio.Event()
