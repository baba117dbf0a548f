"""A session with a fake agent: plays a script and writes Steps by the contract."""

import asyncio
import json
import posixpath
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from uuid import uuid4

from benchflow_contracts.agent import (
    ActivityHandler,
    AskUserHandler,
    Role,
    SessionSnapshot,
    SessionState,
    StepActivity,
    StepHandler,
    ToolActivity,
)
from benchflow_contracts.ask import Answer, Ask
from benchflow_contracts.cause import caused_outside
from benchflow_contracts.errors import (
    AgentError,
    AgentTimeoutError,
    SandboxError,
    SnapshotError,
)
from benchflow_contracts.sandbox import Sandbox
from benchflow_contracts.step import Observation, Step, StopReason, ToolCall, ToolStatus

from .faults import FakeFaults
from .process import FakeProcess
from .program import FakeProgram
from .sandbox import FakeSandbox
from .script import Act, Crash, Hang, Move, Pose, Say, Stop, Think

_T = TypeVar("_T")


@dataclass(slots=True)
class _Draft:
    """The open step."""

    role: str
    skills: tuple[str, ...]
    prompt: str | None = None
    answer: Answer | None = None
    has_begun: bool = False
    message: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list[ToolCall])
    observations: list[Observation] = field(default_factory=list[Observation])
    started_at: float = field(default_factory=time.time)
    acted_at: float = 0
    """The time of the last result of a tool call."""

    def finished(self, ask: Ask | None, stop_reason: StopReason | None, at: float) -> Step:
        return Step(
            id=f"step-{uuid4().hex[:12]}",
            role=self.role,
            skills=self.skills,
            prompt=self.prompt,
            answer=self.answer,
            reasoning=self.reasoning,
            message=self.message,
            tool_calls=tuple(self.tool_calls),
            observations=tuple(self.observations),
            ask=ask,
            stop_reason=stop_reason,
            started_at=self.started_at,
            finished_at=max(self.started_at, at),
        )


class FakeSession:
    """Follows one list of moves per prompt. A prompt after the end of the script does nothing.

    `sandbox` and `answers` are what an `Act` works with. In a fake sandbox the session
    stands there as an idle process, which a live snapshot carries. Faults are keyed by
    `prompt`, `cancel`, `snapshot`, `capture` and `answer`.
    """

    def __init__(
        self,
        turns: Sequence[Sequence[Move]],
        sandbox: Sandbox,
        role: Role,
        *,
        agent: str,
        faults: FakeFaults,
        resume: SessionSnapshot | None = None,
        process: FakeProcess | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.role = role
        self.answers: list[Answer] = []
        self.prompts: list[str] = []
        self.closed = False
        self.log_dir: Path | None = None
        self._turns = turns
        self._turn = int(str(resume.config.get("turn", "0"))) if resume else 0
        self._before = resume.steps if resume else 0
        self._id = resume.session_id if resume else f"fake-session-{uuid4().hex[:8]}"
        self._agent = agent
        self._faults = faults
        self._steps: list[Step] = []
        self._ask_handler: AskUserHandler | None = None
        self._step_handlers: list[StepHandler] = []
        self._activity_handler: ActivityHandler | None = None
        self._scope: asyncio.Timeout | None = None
        self._cancelled = False
        self._dead: AgentError | None = None
        self._draft = _Draft(role.name, role.skills)
        self._asking: Ask | None = None
        self._carried = False
        self._heard: list[Answer] = []
        self._played = 0
        """The moves that began since the last answer of the turn, or since its start."""
        self._is_thinking = self._carried_at_call = False
        self._process = process
        if process is None and isinstance(sandbox, FakeSandbox):
            self._process = sandbox.place(FakeProgram(), agent)

    @property
    def process(self) -> FakeProcess | None:
        """The process of the agent in a fake sandbox."""
        return self._process

    @property
    def id(self) -> str:
        """The id of the session, which a resume does not change."""
        return self._id

    @property
    def steps(self) -> list[Step]:
        """The finished steps. An attached session starts with the parent's steps."""
        return list(self._steps)

    async def prompt(self, text: str) -> StopReason:
        """Play the next turn of the script."""
        self._check_usable()
        await self._faults.raise_or_hang("prompt")
        self.prompts.append(text)
        moves = self._turns[self._turn] if self._turn < len(self._turns) else ()
        self._turn += 1
        self._heard, self._played = [], 0
        self._draft = _Draft(self.role.name, self.role.skills, prompt=text)
        return await self._run(list(moves))

    async def answer(self, answer: Answer) -> StopReason:
        """Answer the Ask from before the fork, and play the rest of its turn."""
        if not self._carried:
            raise RuntimeError(
                f"session {self.id!r} does not wait for an answer from before a fork"
            )
        self._check_usable()
        await self._faults.raise_or_hang("answer")
        self._carried, self._asking = False, None
        self._hear(answer)
        return await self._run(self._rest_of_turn())

    async def end_step(self, *, also_empty: bool) -> None:
        """End the open step while the agent thinks."""
        await self._faults.raise_or_hang("end_step")
        self._expect_thinking()
        if also_empty or self._draft.has_begun:
            self._finish()

    async def capture_at_call(self) -> SessionState:
        """Copy the position in the script, at a model call."""
        await self._faults.raise_or_hang("capture")
        self._expect_thinking()
        return self._state(None).model_copy(update={"at_call": True})

    async def resume_turn(self) -> StopReason:
        """Play the turn from the model call at which it was forked."""
        if not self._carried_at_call:
            raise RuntimeError(f"session {self.id!r} was not forked at a model call")
        self._check_usable()
        await self._faults.raise_or_hang("resume_turn")
        self._carried_at_call = False
        moves = self._rest_of_turn()[self._played :]
        return await self._run(moves)

    def _expect_thinking(self) -> None:
        self._check_usable()
        if not self._is_thinking:
            raise SnapshotError(f"session {self.id!r} is not at a model call", retryable=True)

    async def _run(self, moves: list[Move]) -> StopReason:
        self._cancelled = False
        try:
            async with asyncio.timeout(self.role.timeout_sec) as self._scope:
                reason = await self._play(moves)
        except TimeoutError as error:
            if not self._cancelled:
                raise self._die(
                    AgentTimeoutError(f"the turn took more than {self.role.timeout_sec} s")
                ) from error
            reason = "cancelled"
        finally:
            self._scope = None
        self._finish(stop_reason=reason)
        return reason

    async def cancel(self) -> None:
        """End the running turn with `cancelled`. No-op when idle."""
        await self._faults.raise_or_hang("cancel")
        if self._scope is not None:
            self._cancelled = True
            self._scope.reschedule(asyncio.get_running_loop().time())

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """Call `handler` for every Ask."""
        self._ask_handler = handler

    def on_step(self, handler: StepHandler) -> None:
        """Call `handler` with each step as it finishes."""
        self._step_handlers.append(handler)

    def on_activity(self, handler: ActivityHandler) -> None:
        """Call `handler` with each step and tool call as it begins."""
        self._activity_handler = handler

    async def snapshot(self) -> SessionSnapshot:
        """Write the session's file into the sandbox and describe it."""
        await self._faults.raise_or_hang("snapshot")
        self._check_usable()
        if self._scope is not None:
            raise SnapshotError(f"a turn of session {self.id!r} is running")
        path = posixpath.join("/var/lib/fake-agent", f"{self.id}.json")
        with TemporaryDirectory() as directory:
            local = Path(directory) / "session.json"
            local.write_text(json.dumps({"turn": self._turn}), encoding="utf-8")
            await self.sandbox.upload(local, path)
        return SessionSnapshot(
            agent=self._agent,
            session_id=self.id,
            cwd=self.sandbox.spec.workdir,
            files=(path,),
            config={"turn": str(self._turn)},
            steps=self._before + len(self._steps),
        )

    async def capture(self) -> SessionState:
        """Copy the position in the script, at a turn boundary or while an Ask waits."""
        await self._faults.raise_or_hang("capture")
        self._check_usable()
        if self._scope is not None and self._asking is None:
            raise SnapshotError(
                f"a tool call of session {self.id!r} may be running", retryable=True
            )
        return self._state(self._asking)

    def _state(self, ask: Ask | None) -> SessionState:
        if self._process is None or not isinstance(self.sandbox, FakeSandbox):
            raise SnapshotError(f"session {self.id!r} has no process in its sandbox")
        if not self.sandbox.gate.frozen:
            raise SnapshotError(f"the sandbox of session {self.id!r} is not frozen")
        return SessionState(
            agent=self._agent,
            session_id=self.id,
            process_id=self._process.id,
            ask=ask,
            steps=tuple(self._steps),
            data={
                "turn": self._turn,
                "before": self._before,
                "prompts": list(self.prompts),
                "answers": [answer.model_dump(mode="json") for answer in self.answers],
                "heard": len(self._heard),
                "prompt": self._draft.prompt,
                "played": self._played - self._is_thinking,
            },
        )

    def continue_from(self, state: SessionState) -> None:
        """Continue from a captured state."""
        data: Mapping[str, Any] = state.data
        self._id = state.session_id
        self._steps = list(state.steps)
        self._turn, self._before = data["turn"], data["before"]
        self.prompts = list(data["prompts"])
        self.answers = [Answer.model_validate(answer) for answer in data["answers"]]
        self._heard = self.answers[len(self.answers) - data["heard"] :]
        self._asking, self._carried = state.ask, state.ask is not None
        self._played, self._carried_at_call = data["played"], state.at_call
        self._draft.prompt = data["prompt"]

    async def aclose(self) -> None:
        """End the session and its process. Idempotent."""
        self.closed = True
        if self._process is not None:
            await self._process.aclose()

    async def _play(self, moves: list[Move]) -> StopReason:
        while moves:
            move = moves.pop(0)
            self._played += 1
            match move:
                case Say():
                    self._say(move)
                case Think():
                    self._say(Say(await self._think(move)))
                case Act():
                    await self._act(move)
                case Pose():
                    answer = await self._ask(move)
                    moves[:0] = move.then(answer) if move.then else ()
                case Hang():
                    await self._unless_idle(asyncio.Event().wait())
                case Crash():
                    raise self._die(move.error)
                case Stop():
                    return move.reason
        return "end_turn"

    def _say(self, move: Say) -> None:
        if self._draft.observations:
            self._finish(at=self._draft.acted_at)
        self._begin()
        self._draft.message += move.message
        self._draft.reasoning += move.reasoning

    async def _think(self, move: Think) -> str:
        self._is_thinking = True
        try:
            return await self._unless_idle(move.run(self))
        finally:
            self._is_thinking = False

    async def _act(self, move: Act) -> None:
        call = ToolCall(
            id=f"call-{uuid4().hex[:8]}", title=move.title, kind=move.kind, raw_input=move.raw_input
        )
        self._draft.tool_calls.append(call)
        self._begin()
        self._report(call, "in_progress")
        try:
            content = await self._unless_idle(move.run(self))
            seen = Observation(tool_call_id=call.id, status="completed", content=content)
        except SandboxError as error:
            if caused_outside(error):
                raise
            seen = Observation(tool_call_id=call.id, status="failed", content=str(error))
        self._draft.observations.append(seen)
        self._draft.acted_at = time.time()
        self._report(call, seen.status)

    def _begin(self) -> None:
        """Report the step with its first action."""
        if not self._draft.has_begun and self._activity_handler is not None:
            self._activity_handler(StepActivity())
        self._draft.has_begun = True

    def _report(self, call: ToolCall, status: ToolStatus) -> None:
        if self._activity_handler is not None:
            activity = ToolActivity(call.id, call.title, call.name, call.kind, status)
            self._activity_handler(activity)

    async def _ask(self, move: Pose) -> Answer:
        self._finish(ask=move.ask)
        self._asking = move.ask
        try:
            if self._ask_handler is None:
                answer = Answer(outcome="cancelled")
            else:
                answer = await self._ask_handler(move.ask)
        finally:
            self._asking = None
        return self._hear(answer)

    def _hear(self, answer: Answer) -> Answer:
        self.answers.append(answer)
        self._heard.append(answer)
        self._played = 0
        self._draft.answer = answer
        return answer

    def _rest_of_turn(self) -> list[Move]:
        moves = list(self._turns[self._turn - 1])
        for answer in self._heard:
            pose = moves.pop(0)
            while not isinstance(pose, Pose):
                pose = moves.pop(0)
            moves[:0] = pose.then(answer) if pose.then else ()
        return moves

    async def _unless_idle(self, work: Awaitable[_T]) -> _T:
        limit = self.role.idle_timeout_sec
        idle = asyncio.timeout(limit)
        try:
            async with idle:
                return await work
        except TimeoutError as error:
            if not idle.expired():
                raise
            raise self._die(AgentTimeoutError(f"no update for {limit} s")) from error

    def _finish(
        self,
        *,
        ask: Ask | None = None,
        stop_reason: StopReason | None = None,
        at: float | None = None,
    ) -> None:
        step = self._draft.finished(ask, stop_reason, time.time() if at is None else at)
        self._steps.append(step)
        self._draft = _Draft(self.role.name, self.role.skills)
        for handler in self._step_handlers:
            handler(step)

    def _check_usable(self) -> None:
        if self._dead is not None:
            raise AgentError(f"session {self.id!r} has ended: {self._dead}")
        if self.closed:
            raise AgentError(f"session {self.id!r} is closed")

    def _die(self, error: AgentError) -> AgentError:
        self._dead = error
        return error
