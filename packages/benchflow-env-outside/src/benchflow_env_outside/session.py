"""One session with an outside world: its record, its latch, and its restore."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, TypeVar

from benchflow_contracts import (
    EnvironmentError_,
    OutsideState,
    RareModel,
    RewardError,
    RewardEvent,
    SnapshotError,
    Step,
    WorldCall,
    WorldCallHandler,
    WorldSnapshots,
)
from benchflow_contracts.pausing import running_timeout
from pydantic import ValidationError

from .answers import CheckedAnswer, check_answer, check_tools, digest_of
from .client import Conversation, CopiesState, JudgesEpisode, WorldClient, WorldTool
from .limits import WorldLimits

T = TypeVar("T")
Operation = Literal["open", "call", "finish"]
OVER: Final = "The episode is over. Do not call tools any more; end your turn."
FAILED: Final = "The environment failed. Do not call tools any more; end your turn."
_HINT: Final = "check that the server of the environment runs, and read its own log"
_EXCERPT: Final = 200
_IDLE_SEC: Final = 60
"""Seconds that a checkpoint waits for a running tool call."""


class RecordedCall(RareModel):
    """One exchange of the record. A child repeats it and must observe the same."""

    tool: str
    """Empty for the opening."""
    arguments: Mapping[str, Any] = {}
    digest: str
    """Of the answer."""
    excerpt: str
    """The start of the answer's text, for messages."""
    rewards: tuple[RewardEvent, ...] = ()
    finished: bool = False
    failed: bool = False


class _Saved(RareModel):
    """`OutsideState.data`."""

    record: tuple[RecordedCall, ...]
    prompt: str
    snapshot: Any = None


class WorldSession:
    """A session with a world. Exchanges with the client happen one at a time."""

    def __init__(
        self,
        name: str,
        client: WorldClient,
        task: Mapping[str, Any],
        seed: int,
        snapshots: WorldSnapshots,
        limits: WorldLimits,
    ) -> None:
        self._name = name
        self._client = client
        self._task = task
        self.seed = seed
        """The seed of each episode that is opened from now on."""
        self._snapshots: WorldSnapshots = snapshots
        self._limits = limits
        self._lock = asyncio.Lock()
        self._ready = asyncio.Event()
        """Set when the world was opened or restored, or when that failed. Calls wait for it."""
        self._record: list[RecordedCall] = []
        self._calls: list[WorldCall] = []
        self._handlers: list[WorldCallHandler] = []
        self._final: tuple[RewardEvent, ...] = ()
        self._without_step = 0
        """The first exchange of the record that belongs to no step yet."""
        self._invalid: str | None = None
        self._failure: EnvironmentError_ | None = None
        self._is_closed = self._is_judged = False
        self.terminal = False
        self.prompt = ""
        self.tools: Sequence[WorldTool] = ()

    def on_call(self, handler: WorldCallHandler) -> None:
        """Call `handler` after each exchange that is not a repetition."""
        self._handlers.append(handler)

    @property
    def digest(self) -> str:
        """The digest of everything that the agent has observed and done."""
        return digest_of([[c.tool, c.arguments, c.digest] for c in self._record])

    async def open(self) -> None:
        """Begin the episode.

        Raises:
            EnvironmentError_: The world failed.
        """
        try:
            answer = await self._ask("open", lambda: self._client.open(self._task, self.seed))
            self.prompt = answer.text
            await self._read_tools()
            self._add(RecordedCall(tool="", **_recorded(answer)), answer, 0.0, operation="open")
        finally:
            self._ready.set()

    async def restore(self, state: OutsideState) -> None:
        """Reach `state` in this new session.

        Raises:
            SnapshotError: The state is malformed, or a repeated call was answered differently.
            EnvironmentError_: The world failed.
        """
        try:
            await self._restore(state)
        except SnapshotError as error:
            self._failure = self._failure or EnvironmentError_(str(error))
            raise
        finally:
            # The agent of a live child runs already, and its calls wait for this.
            self._ready.set()

    async def _restore(self, state: OutsideState) -> None:
        try:
            saved = _Saved.model_validate(dict(state.data))
        except ValidationError as error:
            raise SnapshotError(f"the saved state of world {self._name!r} is malformed") from error
        self.prompt = saved.prompt
        if state.kind == "replay":
            await self._repeat(saved.record)
        else:
            client = self._client
            if not isinstance(client, CopiesState):
                raise SnapshotError(f"world {self._name!r} cannot restore a copy of its state")
            work = client.restore(self._task, self.seed, saved.snapshot)
            await self._limited("restore", self._limits.open_sec, work)
            self._calls = [_saved_call(call) for call in saved.record]
        self._record = list(saved.record)
        self._without_step = len(self._record)
        self.terminal = any(call.finished for call in self._record)
        if not self.tools:
            await self._read_tools()
        if self.digest != state.digest:
            raise SnapshotError(f"the saved state of world {self._name!r} has another digest")

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> CheckedAnswer:
        """Call a tool for the agent. The world does not see a call after the end of the episode."""
        await self._ready.wait()
        async with self._lock:
            if refusal := self._refusal(tool):
                return CheckedAnswer((refusal,), (), finished=self.terminal, failed=True)
            started = time.monotonic()
            try:
                answer = await self._ask("call", lambda: self._client.call(tool, arguments))
            except EnvironmentError_:
                return CheckedAnswer((FAILED,), (), finished=False, failed=True)
            call = RecordedCall(tool=tool, arguments=arguments, **_recorded(answer))
            self._add(call, answer, time.monotonic() - started, operation="call")
            return answer

    def end_step(self, step_id: str) -> None:
        """Let the exchanges since the last step belong to the step `step_id`."""
        for at in range(self._without_step, len(self._record)):
            call = self._record[at]
            rewards = tuple(e.model_copy(update={"step_id": step_id}) for e in call.rewards)
            self._record[at] = call.model_copy(update={"rewards": rewards})
        self._without_step = len(self._record)

    def reward_events(self) -> list[RewardEvent]:
        """Return the rewards so far; see `OutsideWorld.reward_events`."""
        if self._failure is not None:
            raise self._failure
        if self._invalid is not None:
            raise RewardError(self._invalid, hint="the world must send finite numbers")
        return [event for call in self._record for event in call.rewards] + list(self._final)

    async def finish(self, steps: Sequence[Step]) -> None:
        """Ask the world for its final verdict, once."""
        async with self._lock:
            client = self._client
            if self._is_judged or self._failure is not None:
                return
            self._is_judged = self.terminal = True
            if not isinstance(client, JudgesEpisode):
                return
            started = time.monotonic()
            conversation = Conversation(steps, tuple(self._calls))
            answer = await self._ask("finish", lambda: client.finish(conversation), optional=True)
            self._final = tuple(
                event.model_copy(update={"granularity": "terminal"}) for event in answer.rewards
            )
            took = time.monotonic() - started
            self._report(_world_call("finish", "", "", answer, took))

    @asynccontextmanager
    async def while_idle(self) -> AsyncGenerator[None]:
        """Let no tool call reach the world inside this block.

        Raises:
            EnvironmentError_: A tool call does not end; `retryable`.
        """
        try:
            async with running_timeout(_IDLE_SEC):
                await self._lock.acquire()
        except TimeoutError as error:
            raise EnvironmentError_(
                f"a tool call of world {self._name!r} does not end", retryable=True
            ) from error
        try:
            yield
        finally:
            self._lock.release()

    async def capture(self) -> OutsideState:
        """Return the state; see `OutsideWorld.capture`."""
        if self._snapshots == "none":
            raise SnapshotError(f"world {self._name!r} cannot be copied: it has no snapshots")
        if self._failure is not None:
            raise SnapshotError(f"world {self._name!r} failed: {self._failure}")
        snapshot: Any = None
        if self._snapshots != "replay":
            client = self._client
            if not isinstance(client, CopiesState):
                raise SnapshotError(f"world {self._name!r} declares snapshots, and has none")
            snapshot = await self._limited("snapshot", self._limits.open_sec, client.snapshot())
        saved = _Saved(record=tuple(self._record), prompt=self.prompt, snapshot=snapshot)
        data = saved.model_dump(mode="json")
        return OutsideState(kind=self._snapshots, digest=self.digest, data=data)

    async def aclose(self) -> None:
        """End the session. Idempotent.

        Raises:
            EnvironmentError_: The client failed.
        """
        if not self._is_closed:
            self._is_closed = True
            self._ready.set()
            await self._limited("close", self._limits.close_sec, self._client.close())

    async def _repeat(self, record: Sequence[RecordedCall]) -> None:
        for number, call in enumerate(record):
            if not call.tool:
                answer = await self._ask("open", lambda: self._client.open(self._task, self.seed))
                await self._read_tools()
            else:
                again: Callable[[], Awaitable[object]] = _caller(self._client, call)
                answer = await self._ask("call", again)
            if answer.digest != call.digest:
                what = f"call {number} of {call.tool!r}" if call.tool else "the opening"
                raise SnapshotError(
                    f"world {self._name!r} did not repeat itself: {what} gave"
                    f" {answer.text[:_EXCERPT]!r}, and before {call.excerpt!r}",
                    hint="give the world a fixed seed, or declare snapshots 'none'",
                )
            self._calls.append(_saved_call(call).model_copy(update={"result": answer.text}))

    async def _read_tools(self) -> None:
        tools = await self._limited("tools", self._limits.open_sec, self._client.tools())
        self.tools = check_tools(tools, self._name, self._limits)

    def _refusal(self, tool: str) -> str | None:
        if self._failure is not None:
            return FAILED
        if self.terminal or self._is_closed:
            return OVER
        if all(known.name != tool for known in self.tools):
            return f"Unknown tool: {tool[:64]!r}."
        if len(self._record) > self._limits.calls:
            return f"The limit of {self._limits.calls} tool calls is reached. End your turn."
        return None

    async def _ask(
        self,
        operation: str,
        ask: Callable[[], Awaitable[object]],
        *,
        optional: bool = False,
    ) -> CheckedAnswer:
        seconds = self._limits.call_sec if operation == "call" else self._limits.open_sec
        answer = await self._limited(operation, seconds, ask())
        if optional and answer is None:
            return CheckedAnswer((), (), finished=True, failed=False)
        try:
            checked = check_answer(answer, self._name, self._limits)
        except EnvironmentError_ as error:
            self._failure = error
            raise
        self._invalid = self._invalid or checked.invalid_reward
        return checked

    async def _limited(self, work: str, seconds: float, call: Awaitable[T]) -> T:
        """Await a call of the client. After a failure, the state of the world is unknown."""
        try:
            async with running_timeout(seconds):
                return await call
        except asyncio.CancelledError:
            self._failure = EnvironmentError_(f"{work!r} of world {self._name!r} was cancelled")
            raise
        except TimeoutError as error:
            problem = f"{work!r} of world {self._name!r} took longer than {seconds:g} s"
            self._failure = EnvironmentError_(problem, hint=_HINT, retryable=True)
            raise self._failure from error
        except EnvironmentError_ as error:
            self._failure = error
            raise
        except Exception as error:
            problem = f"{work!r} of world {self._name!r} failed: {type(error).__name__}: {error}"
            is_passing = isinstance(error, OSError)  # such as a lost connection
            self._failure = EnvironmentError_(problem[:1000], hint=_HINT, retryable=is_passing)
            raise self._failure from error

    def _add(
        self, call: RecordedCall, answer: CheckedAnswer, took: float, *, operation: Operation
    ) -> None:
        self._record.append(call)
        self.terminal = self.terminal or answer.finished
        arguments = json.dumps(call.arguments) if call.tool else ""
        self._report(_world_call(operation, call.tool, arguments, answer, took))

    def _report(self, call: WorldCall) -> None:
        self._calls.append(call)
        for handler in self._handlers:
            handler(call)


def _saved_call(call: RecordedCall) -> WorldCall:
    return WorldCall(
        operation="call" if call.tool else "open",
        tool=call.tool,
        arguments=json.dumps(call.arguments) if call.tool else "",
        result=call.excerpt,
        failed=call.failed,
        rewards=call.rewards,
        finished=call.finished,
    )


def _caller(client: WorldClient, call: RecordedCall) -> Callable[[], Awaitable[object]]:
    return lambda: client.call(call.tool, call.arguments)


def _recorded(answer: CheckedAnswer) -> dict[str, Any]:
    return {
        "digest": answer.digest,
        "excerpt": answer.text[:_EXCERPT],
        "rewards": answer.rewards,
        "finished": answer.finished,
        "failed": answer.failed,
    }


def _world_call(
    operation: Operation, tool: str, arguments: str, answer: CheckedAnswer, took: float
) -> WorldCall:
    return WorldCall(
        operation=operation,
        tool=tool,
        arguments=arguments,
        result=answer.text,
        failed=answer.failed,
        rewards=answer.rewards,
        finished=answer.finished,
        took_sec=round(took, 6),
    )
