"""A live ACP session: prompts, asks, steps and cancellation."""

import asyncio
import logging
from typing import Any

from acp.schema import PromptRequest, PromptResponse, TextContentBlock
from benchflow_contracts import (
    ActivityHandler,
    AgentError,
    AgentProtocolError,
    AgentTimeoutError,
    Answer,
    Ask,
    AskUserHandler,
    Role,
    SessionSnapshot,
    SessionState,
    SnapshotError,
    Step,
    StepHandler,
)
from benchflow_contracts.step import StopReason
from pydantic import ValidationError

from .asks import ASK_METHODS, to_ask, to_reply
from .client_state import ClientState
from .connection import INVALID_PARAMS, AgentReplyError, Connection
from .logs import WireRecord
from .services import ClientServices
from .state import IncomingRequest, RequestId
from .steps import StepBuilder
from .turn_clock import TurnClock

CANCEL_GRACE_SEC = 10.0
_TOOLS_END_SEC = 5.0
"""How long `end_step` waits for the results of tool calls that the agent is about to report."""
_TOOLS_POLL_SEC = 0.01

_CANCELLED = Answer(outcome="cancelled")
_log = logging.getLogger(__name__)


class AcpSession:
    """One session with one agent process. See the `Session` contract.

    The agent's pipes are not read between turns. The next turn reads the output of that time.
    """

    def __init__(
        self,
        connection: Connection,
        services: ClientServices,
        builder: StepBuilder,
        *,
        agent: str,
        role: Role,
        base: SessionSnapshot | None = None,
    ) -> None:
        self._connection = connection
        self._services = services
        self._builder = builder
        self._agent = agent
        self._role = role
        self._base = base
        """The snapshot at the start; `None` if a new process cannot load the session."""
        self._replies: dict[RequestId, dict[str, Any]] = {}
        """Replies to Asks from before a fork. The handler is not called for them."""
        self._ask_handler: AskUserHandler | None = None
        self._step_handler: StepHandler | None = None
        self._clock: TurnClock | None = None
        self._cancelling = False
        self._closed = False
        connection.on_request(self._serve)
        connection.on_record(self._on_record)
        connection.on_activity(self._on_activity)

    @property
    def id(self) -> str:
        """The agent's own id of the session."""
        return self._connection.state.session_id or ""

    @property
    def steps(self) -> list[Step]:
        """The finished steps so far, in order."""
        return list(self._builder.steps)

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """Let `handler` answer every Ask. Without a handler, each Ask is cancelled."""
        self._ask_handler = handler

    def on_step(self, handler: StepHandler) -> None:
        """Call `handler` with each step as it finishes."""
        self._step_handler = handler

    def on_activity(self, handler: ActivityHandler) -> None:
        """Call `handler` with each step and tool call as it begins."""
        self._builder.on_activity = handler

    async def prompt(self, text: str) -> StopReason:
        """Run one prompt turn. Raise `AgentError` if a turn is already running."""
        if self._connection.state.prompt_id is not None:
            raise AgentError(f"agent {self._agent!r} is still in a turn")
        block = TextContentBlock(type="text", text=text)
        request = PromptRequest(session_id=self.id, prompt=[block])
        return await self._turn(request.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def answer(self, answer: Answer) -> StopReason:
        """Answer the Ask that waited when the session was forked; run the rest of the turn.

        The turn's clock restarts.

        Raises:
            RuntimeError: The session did not wait for an answer when it was forked.
            UsageError: `answer` does not fit the Ask, which is still pending.
        """
        request = next(iter(self._connection.state.requests.values()), None)
        ask = to_ask(request) if request is not None else None
        in_turn = self._connection.state.prompt_id is not None and self._clock is None
        if request is None or ask is None or not in_turn:
            raise RuntimeError(
                f"agent {self._agent!r} does not wait for the answer to an ask from before a fork"
            )
        self._replies = {request.id: to_reply(ask, answer)}
        return await self._turn(None)

    async def capture(self) -> SessionState:
        """Copy the client's state, for the children of a live fork.

        Call this while the sandbox is frozen. The copy includes everything that the agent wrote
        before the freeze. This session continues normally.

        Raises:
            SnapshotError: The agent is in a turn and does not wait for exactly one answer.
                Retryable, unless the session has ended.
        """
        await self._drain()
        return self._state(self._fork_point())

    async def end_step(self, *, also_empty: bool) -> None:
        """End the open step while the agent waits for its model; see `SupportsCallForks`."""
        self._expect_turn()
        try:
            async with asyncio.timeout(_TOOLS_END_SEC):
                await self._drain()
                # A sandbox without pipes of this host may deliver the output with a delay.
                while self._has_tools():
                    await asyncio.sleep(_TOOLS_POLL_SEC)
                    await self._drain()
        except TimeoutError:
            raise self._retryable_error("a tool call is running") from None
        self._expect_call()
        if also_empty or self._builder.has_action:
            self._connection.end_step("the rollout is at a model call")

    async def capture_at_call(self) -> SessionState:
        """Copy the client's state while the agent waits for its model. See `capture`."""
        await self._drain()
        self._expect_call()
        return self._state(None, at_call=True)

    async def resume_turn(self) -> StopReason:
        """Run the rest of the turn that was forked at a model call. The turn's clock restarts.

        Raises:
            RuntimeError: The session was not in a turn when it was forked.
        """
        state = self._connection.state
        if state.prompt_id is None or self._clock is not None or state.requests:
            raise RuntimeError(f"agent {self._agent!r} was not forked at a model call")
        return await self._turn(None)

    async def _drain(self) -> None:
        try:
            await self._connection.drain()
        except AgentError as error:
            raise SnapshotError(f"agent {self._agent!r} cannot be forked: {error}") from error

    def _state(self, ask: Ask | None, *, at_call: bool = False) -> SessionState:
        terminals = self._services.terminals.state()
        client = ClientState.from_parts(
            self._connection.state, self._builder.state(), terminals, self._base
        )
        return SessionState(
            agent=self._agent,
            session_id=self.id,
            process_id=self._connection.process_id,
            ask=ask,
            at_call=at_call,
            steps=tuple(self._builder.steps),
            data=client.data(),
        )

    async def cancel(self) -> None:
        """Ask the agent to end the running turn; `prompt` returns `cancelled`.

        This method does not wait for the end, so an ask handler may call it. The agent has
        10 seconds to end the turn.
        """
        clock = self._clock
        if clock is None or self._connection.state.prompt_id is None:
            return
        clock.shorten(CANCEL_GRACE_SEC)
        self._cancelling = True
        await self._connection.notify("session/cancel", {"sessionId": self.id})
        for request in list(self._connection.state.requests.values()):
            ask = to_ask(request)
            if ask is not None:
                await self._connection.reply(request, to_reply(ask, _CANCELLED))

    async def snapshot(self) -> SessionSnapshot:
        """Return what a new process needs to load the session. Call it at a turn boundary."""
        if self._connection.state.prompt_id is not None:
            raise SnapshotError(f"agent {self._agent!r} is in the middle of a turn")
        if self._base is None:
            raise SnapshotError(
                f"a new process cannot load the sessions of agent {self._agent!r}",
                hint="fork at fidelity replay, or use an agent whose declaration has `snapshot`",
            )
        return self._base.model_copy(
            update={"session_id": self.id, "steps": self._base.steps + len(self._builder.steps)}
        )

    async def aclose(self) -> None:
        """End the agent's process group. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._step_handler = self._builder.on_activity = None
        self._connection.end("closed")
        await self._connection.aclose()

    async def _turn(self, params: dict[str, Any] | None) -> StopReason:
        state = self._connection.state
        clock = self._clock = TurnClock(
            idle=self._role.idle_timeout_sec, total=self._role.timeout_sec
        )
        self._cancelling = False
        try:
            async with clock:
                if params is not None:
                    # Set the id first: after a partial write, the turn counts as running.
                    state.prompt_id = state.next_id
                    await self._connection.start("session/prompt", params)
                assert state.prompt_id is not None
                result = await self._connection.finish(state.prompt_id)
        except TimeoutError:
            await self._stop_turn(clock)
            raise self._timeout_error(clock) from None
        except AgentReplyError as error:
            state.prompt_id = None
            if self._builder.steps[-1].stop_reason != "cancelled":
                raise
            _log.debug("the agent answered a cancelled turn with an error: %s", error)
            return "cancelled"
        except AgentError as error:
            self._connection.end(str(error))
            if isinstance(error, AgentProtocolError):
                await self._connection.aclose(str(error))
            raise
        finally:
            self._clock = None
        return await self._stop_reason(result)

    async def _stop_reason(self, result: dict[str, Any]) -> StopReason:
        self._connection.state.prompt_id = None
        try:
            PromptResponse.model_validate(result)
        except ValidationError as error:
            await self._connection.aclose("the agent broke the protocol")
            raise AgentProtocolError(
                f"agent {self._agent!r} ended its turn without a known stop reason"
            ) from error
        reason = self._builder.steps[-1].stop_reason
        assert reason is not None
        return reason

    def _expect_turn(self) -> None:
        self._expect_open()
        if self._connection.state.prompt_id is None:
            raise SnapshotError(f"agent {self._agent!r} is not in a turn")

    def _expect_open(self) -> None:
        if self._connection.closed_reason is not None:
            raise SnapshotError(f"the session has ended: {self._connection.closed_reason}")
        if not self._connection.is_settled:
            raise self._retryable_error("a message is being sent")

    def _expect_call(self) -> None:
        """Raise `SnapshotError` unless the agent is in a turn and only waits for its model."""
        self._expect_turn()
        if self._connection.state.requests or self._cancelling:
            raise self._retryable_error("it waits for an answer of its client")
        if self._has_tools():
            raise self._retryable_error("a tool call is running")

    def _has_tools(self) -> bool:
        return bool(self._builder.running() or self._services.terminals.running)

    def _fork_point(self) -> Ask | None:
        """Return the Ask to fork at, or `None` at a turn boundary."""
        self._expect_open()
        state = self._connection.state
        if state.prompt_id is None:
            return None
        asks = [to_ask(request) for request in state.requests.values()]
        if len(asks) != 1 or asks[0] is None or self._cancelling:
            raise self._retryable_error(
                "the agent is in a turn and does not wait for exactly one answer"
            )
        if self._has_other_calls(asks[0]) or self._services.terminals.running:
            raise self._retryable_error("a tool call is running")
        return asks[0]

    def _has_other_calls(self, ask: Ask) -> bool:
        """Return whether a tool call runs besides the call that asks."""
        running = self._builder.running()
        if ask.tool_call_id in running:
            return len(running) > 1
        # The portable tool's question may arrive before the agent reports the tool call.
        return len(running) > (ask.channel == "mcp")

    def _retryable_error(self, reason: str) -> SnapshotError:
        return SnapshotError(
            f"agent {self._agent!r} cannot be forked now: {reason}",
            hint="fork at the end of a turn, or while the agent waits for an answer",
            retryable=True,
        )

    def _timeout_error(self, clock: TurnClock) -> AgentTimeoutError:
        if clock.expired is None:
            return AgentTimeoutError(f"agent {self._agent!r}: a handler did not end in time")
        reason = {
            "idle": f"was silent for {self._role.idle_timeout_sec:g} s",
            "turn": f"did not end its turn within {self._role.timeout_sec:g} s",
            "cancel": f"did not end its turn {CANCEL_GRACE_SEC:g} s after the cancel",
        }[clock.expired]
        return AgentTimeoutError(
            f"agent {self._agent!r} {reason}",
            hint="raise timeout_sec or idle_timeout_sec of the role, or read agent/stderr.txt",
        )

    async def _stop_turn(self, clock: TurnClock) -> None:
        """Cancel a turn that did not end in time; kill the agent if it continues."""
        state = self._connection.state
        assert state.prompt_id is not None
        turn_ended = False
        if clock.expired != "cancel":
            self._cancelling = True
            turn_ended = await self._connection.cancel_call(
                state.prompt_id, {"sessionId": self.id}, grace=CANCEL_GRACE_SEC / 2
            )
        if turn_ended:
            state.prompt_id = None
        else:
            self._connection.end("the turn did not end in time")
            await self._connection.aclose("the turn did not end in time")

    def _on_record(self, record: WireRecord) -> None:
        for step in self._builder.feed(record):
            if self._step_handler is not None:
                self._step_handler(step)

    def _on_activity(self) -> None:
        if self._clock is not None:
            self._clock.touch()

    async def _serve(self, request: IncomingRequest) -> None:
        if request.method not in ASK_METHODS:
            await self._services.serve(request)
            return
        ask = to_ask(request)
        if ask is None:
            await self._connection.refuse(
                request.id, INVALID_PARAMS, "this client accepts only forms that have questions"
            )
            return
        reply = self._replies.pop(request.id, None)
        if reply is None:
            reply = to_reply(ask, await self._answer(ask))
        await self._connection.reply(request, reply)

    async def _answer(self, ask: Ask) -> Answer:
        handler, clock = self._ask_handler, self._clock
        if handler is None or clock is None or self._cancelling:
            return _CANCELLED
        clock.pause()
        answer = await handler(ask)
        clock.resume()
        return answer
