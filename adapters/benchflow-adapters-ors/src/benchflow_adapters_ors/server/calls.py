"""The tool calls of one session: each runs once, and its result can be read again for a while."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from benchflow_contracts import BenchFlowError, Task
from benchflow_tool_sessions import (
    SUBMIT,
    Outcome,
    SessionEndedError,
    ToolResult,
    ToolSession,
    ToolSpec,
)
from pydantic import JsonValue

from benchflow_adapters_ors.sse import PING, encode_error, encode_event, encode_result
from benchflow_adapters_ors.wire import (
    PING_SEC,
    Block,
    CallRequest,
    ImageBlock,
    TextBlock,
    ToolFailure,
    ToolOutput,
    ToolSuccess,
)

LINGER_SEC: Final = 60.0
"""How long a result can be read again after its call has ended."""


class SessionCalls:
    """Runs the calls of a session. The episode ends once, and pays its reward once."""

    def __init__(
        self, session: ToolSession, task: Task, toolset: frozenset[str] | None = None
    ) -> None:
        """Prepare the calls. `toolset` are the tools of the session; `None` has all of them."""
        self.session = session
        self.task = task
        self._toolset = toolset
        self._calls: dict[str, asyncio.Task[tuple[bytes, ...]]] = {}
        self._finisher: str | None = None
        """The call that gets the verdict. Later calls are refused."""

    def of_child(self, session: ToolSession) -> "SessionCalls":
        """Return the calls of a child of a fork, which has the same task and tools."""
        return SessionCalls(session, self.task, self._toolset)

    async def tools(self) -> list[ToolSpec]:
        """Return the tools of the session that its toolset has, and `submit`."""
        tools, chosen = await self.session.tools(), self._toolset
        return [tool for tool in tools if chosen is None or tool.name in {*chosen, SUBMIT}]

    def stream(self, request: CallRequest) -> AsyncGenerator[bytes]:
        """Yield the events of a call; see `stream_result`."""

        def run(ident: str) -> Coroutine[Any, Any, tuple[bytes, ...]]:
            return self._run(ident, request.name, request.input)

        return self.stream_result(request.task_id, run)

    async def stream_result(
        self, ident: str | None, run: Callable[[str], Coroutine[Any, Any, tuple[bytes, ...]]]
    ) -> AsyncGenerator[bytes]:
        """Yield the events of `run`. With an `ident`, read the result of that id again.

        The work runs to its end when the reader goes away.
        """
        if ident is None:
            ident = uuid.uuid4().hex
            # The session owns the task: a reader may go away, and another one may come.
            task = asyncio.create_task(run(ident))  # noqa: TID251
            self._calls[ident] = task
            task.add_done_callback(lambda _: self._forget_later(ident))
        call = self._calls.get(ident)
        if call is None:
            yield encode_error("unknown task_id")
            return
        yield encode_event("task_id", ident)
        while not (await asyncio.wait({call}, timeout=PING_SEC))[0]:
            yield PING
        if call.cancelled():
            yield encode_error("the session was deleted")
            return
        for event in call.result():
            yield event

    async def aclose(self) -> None:
        """Cancel the calls that still run."""
        calls = set(self._calls.values())
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        self._calls.clear()

    def _forget_later(self, ident: str) -> None:
        asyncio.get_running_loop().call_later(LINGER_SEC, self._calls.pop, ident, None)

    async def _run(
        self, ident: str, name: str, arguments: Mapping[str, JsonValue]
    ) -> tuple[bytes, ...]:
        try:
            result = await self._result(ident, name, arguments)
            return tuple(encode_result(result))
        except (BenchFlowError, ValueError) as error:
            return (encode_error(str(error)),)

    async def _result(
        self, ident: str, name: str, arguments: Mapping[str, JsonValue]
    ) -> ToolSuccess | ToolFailure:
        if self._finisher is not None:
            return _after_the_end(name)
        if all(tool.name != name for tool in await self.tools()):
            return ToolFailure(error=f"{name[:200]!r} is not a valid tool", reason="not_found")
        if name == SUBMIT:
            self._finisher = ident
        try:
            result = await self.session.call(name, arguments)
        except SessionEndedError:
            # A limit has ended the session since the last call, and it was graded.
            if self._finisher not in {None, ident}:
                return _after_the_end(name)
            result = ToolResult("The session has ended.", finished=True)
        if result.finished:
            self._finisher = ident
            return _verdict(result, await self.session.outcome(), self.session.id)
        if self._finisher == ident:
            self._finisher = None
        return ToolSuccess(output=ToolOutput(blocks=_blocks(result), metadata=_facts(result)))


def _after_the_end(name: str) -> ToolFailure:
    return ToolFailure(
        error=f"{name[:200]!r} was not run: the episode has finished", reason="episode_finished"
    )


def _verdict(result: ToolResult, outcome: Outcome, rollout: str) -> ToolSuccess:
    if outcome.reward is None:
        raise UnscoredError(f"the episode has no reward: {outcome.unscored}")
    metadata: dict[str, JsonValue] = {
        **_facts(result),
        "items": dict(outcome.items),
        "rollout": rollout,
        "truncated": outcome.ended_early,
    }
    output = ToolOutput(
        blocks=_blocks(result), metadata=metadata, reward=outcome.reward, finished=True
    )
    return ToolSuccess(output=output)


class UnscoredError(BenchFlowError):
    """The episode ended without a verdict. It is not a reward of 0."""

    boundary = "reward"
    default_hint = "read the record of the rollout"


def _facts(result: ToolResult) -> dict[str, JsonValue]:
    return {"is_error": result.is_error, "output_cut": result.truncated, **(result.data or {})}


def _blocks(result: ToolResult) -> tuple[Block, ...]:
    blocks: Sequence[Block | None] = [_block(each) for each in result.blocks]
    known = tuple(each for each in blocks if each is not None)
    # A block of another type is named in the text of the result.
    return known if len(known) == len(blocks) else (TextBlock(text=result.text),)


def _block(block: Mapping[str, JsonValue]) -> Block | None:
    match block:
        case {"type": "text", "text": str(text)}:
            return TextBlock(text=text)
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return ImageBlock(data=data, mimeType=kind)
        case _:
            return None
