"""A live ACP session: prompts, asks, steps, cancellation and its end."""

import logging
from dataclasses import dataclass
from typing import Any

from acp.schema import PromptRequest, PromptResponse, TextContentBlock
from benchflow_contracts import (
    AgentError,
    AgentProtocolError,
    AgentTimeoutError,
    Answer,
    Ask,
    AskUserHandler,
    Role,
    SessionCarry,
    SessionSnapshot,
    SnapshotError,
    Step,
    StepHandler,
)
from benchflow_contracts.step import StopReason
from pydantic import ValidationError

from .asks import ASK_METHODS, to_ask, to_reply
from .clock import TurnClock
from .connection import INVALID_PARAMS, Connection
from .failures import AgentReplyError
from .services import ClientServices
from .state import ConnectionState, IncomingRequest
from .steps import StepBuilder
from .wirelog import WireRecord

CANCEL_GRACE_SEC = 10.0

_CANCELLED = Answer(outcome="cancelled")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SessionState:
    """A session between two reads, for one child of a fork: data only."""

    connection: ConnectionState
    builder: StepBuilder
    carried: SessionSnapshot | None


class AcpSession:
    """One session with one agent process. See the `Session` contract.

    Nothing reads the agent's pipes between turns; what it says then is taken in at
    the start of the next one.
    """

    def __init__(
        self,
        connection: Connection,
        services: ClientServices,
        builder: StepBuilder,
        *,
        agent: str,
        role: Role,
        carried: SessionSnapshot | None = None,
    ) -> None:
        self._connection = connection
        self._services = services
        self._builder = builder
        self._agent = agent
        self._role = role
        self._carried = carried
        self._ask_handler: AskUserHandler | None = None
        self._step_handler: StepHandler | None = None
        self._clock: TurnClock | None = None
        self._cancelling = False
        self._closed = False
        connection.on_request(self._serve)
        connection.on_record(self._take)
        connection.on_life(self._touch)

    @property
    def id(self) -> str:
        """The agent's own id of the session."""
        return self._connection.state.session_id or ""

    @property
    def steps(self) -> list[Step]:
        """The finished steps so far, in order."""
        return list(self._builder.steps)

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """Let `handler` answer every Ask. Without one, each is cancelled."""
        self._ask_handler = handler

    def on_step(self, handler: StepHandler) -> None:
        """Call `handler` with each step as it finishes."""
        self._step_handler = handler

    async def prompt(self, text: str) -> StopReason:
        """Run one prompt turn. Raises `AgentError` when one is already running."""
        if self._connection.state.prompt_id is not None:
            raise AgentError(f"agent {self._agent!r} is still in a turn")
        block = TextContentBlock(type="text", text=text)
        request = PromptRequest(session_id=self.id, prompt=[block])
        return await self._turn(request.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def continue_turn(self) -> StopReason:
        """Go on with the turn that a copied state is in: its asks are asked again."""
        if self._connection.state.prompt_id is None:
            raise AgentError(f"agent {self._agent!r} is in no turn")
        return await self._turn(None)

    def state(self) -> SessionState:
        """Return an independent copy of everything the client knows."""
        return SessionState(self._connection.state.copy(), self._builder.copy(), self._carried)

    async def cancel(self) -> None:
        """Ask the agent to end the running turn; `prompt` returns `cancelled`.

        Does not wait for it, so that an ask handler may call it. The agent has
        10 seconds to comply.
        """
        clock = self._clock
        if clock is None or self._connection.state.prompt_id is None:
            return
        clock.hurry(CANCEL_GRACE_SEC)
        self._cancelling = True
        await self._connection.notify("session/cancel", {"sessionId": self.id})
        for request in list(self._connection.state.requests.values()):
            ask = to_ask(request)
            if ask is not None:
                await self._connection.reply(request, to_reply(ask, _CANCELLED))

    async def snapshot(self) -> SessionSnapshot:
        """Describe the session at a turn boundary."""
        if self._connection.state.prompt_id is not None:
            raise SnapshotError(f"agent {self._agent!r} is in the middle of a turn")
        if self._carried is None:
            raise SnapshotError(
                f"the sessions of agent {self._agent!r} cannot be carried to a new process",
                hint="fork at fidelity replay, or use an agent whose declaration says `snapshot`",
            )
        return self._carried.model_copy(
            update={"session_id": self.id, "steps": self._carried.steps + len(self._builder.steps)}
        )

    async def carry(self) -> SessionCarry:
        """Refuse: not carried yet."""
        raise SnapshotError(f"agent {self._agent!r} cannot be carried live")

    async def proceed(self, answer: Answer) -> StopReason:
        """Refuse: no Ask was carried in."""
        raise RuntimeError(f"no carried Ask waits for {answer.outcome!r}")

    async def aclose(self) -> None:
        """End the agent process and everything that it started. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._step_handler = None
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
                    # The id is known before the write, so that a cut write is a running turn.
                    state.prompt_id = state.next_id
                    await self._connection.start("session/prompt", params)
                assert state.prompt_id is not None
                result = await self._connection.finish(state.prompt_id)
        except TimeoutError:
            await self._wind_down(clock)
            raise self._timeout_error(clock) from None
        except AgentReplyError as error:
            state.prompt_id = None
            if self._builder.steps[-1].stop_reason != "cancelled":
                raise
            _log.debug("a cancelled turn was answered with an error: %s", error)
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
            await self._connection.aclose("it broke the protocol")
            raise AgentProtocolError(
                f"agent {self._agent!r} ended its turn without a known stop reason"
            ) from error
        reason = self._builder.steps[-1].stop_reason
        assert reason is not None
        return reason

    def _timeout_error(self, clock: TurnClock) -> AgentTimeoutError:
        if clock.expired is None:
            return AgentTimeoutError(f"agent {self._agent!r}: a handler ran out of time")
        why = {
            "idle": f"was silent for {self._role.idle_timeout_sec:g} s",
            "turn": f"did not end its turn within {self._role.timeout_sec:g} s",
            "cancel": f"did not end its turn {CANCEL_GRACE_SEC:g} s after it was cancelled",
        }[clock.expired]
        return AgentTimeoutError(
            f"agent {self._agent!r} {why}",
            hint="raise timeout_sec or idle_timeout_sec of the role, or read agent/stderr.txt",
        )

    async def _wind_down(self, clock: TurnClock) -> None:
        """Cancel the turn that ran out of time; kill the agent when it does not comply."""
        state = self._connection.state
        assert state.prompt_id is not None
        complied = False
        if clock.expired != "cancel":
            self._cancelling = True
            complied = await self._connection.cancel_call(
                state.prompt_id, {"sessionId": self.id}, grace=CANCEL_GRACE_SEC / 2
            )
        if complied:
            state.prompt_id = None
        else:
            self._connection.end("the turn ran out of time")
            await self._connection.aclose("the turn ran out of time")

    def _take(self, record: WireRecord) -> None:
        for step in self._builder.feed(record):
            if self._step_handler is not None:
                self._step_handler(step)

    def _touch(self) -> None:
        if self._clock is not None:
            self._clock.touch()

    async def _serve(self, request: IncomingRequest) -> None:
        if request.method not in ASK_METHODS:
            await self._services.serve(request)
            return
        ask = to_ask(request)
        if ask is None:
            await self._connection.refuse(
                request.id, INVALID_PARAMS, "this client takes forms with questions only"
            )
            return
        await self._connection.reply(request, to_reply(ask, await self._answer(ask)))

    async def _answer(self, ask: Ask) -> Answer:
        handler, clock = self._ask_handler, self._clock
        if handler is None or clock is None or self._cancelling:
            return _CANCELLED
        clock.hold()
        answer = await handler(ask)
        clock.release()
        return answer
