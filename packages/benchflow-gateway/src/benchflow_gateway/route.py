"""The model endpoint of one node of one rollout."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from benchflow_contracts import (
    BenchFlowError,
    CallGate,
    Endpoint,
    HostError,
    ModelApi,
    ModelCall,
    PendingCall,
    ReplayDivergedError,
    StoreError,
    UpstreamAnswer,
)
from benchflow_contracts.pausing import pause_switch, running_timeout
from benchflow_contracts.redaction import redactor

from .call_log import CallLog
from .conversation import conversation_of
from .digest import request_digest
from .documents import Document, text_of
from .draft import Draft
from .errors import CallBudgetError, DeferredError, RecordLimitError, RefusedError
from .meter import Meter
from .purpose import PurposeRule
from .replay import DivergedError, Replay
from .sampling import SamplingOverride
from .space import ByteSemaphore
from .upstream import Upstream
from .wires import Wire

_CLOSE_SEC = 10.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The replay, the budget and the other rules of a route."""

    replay: Replay
    meter: Meter
    purposes: PurposeRule
    diverged_go_live: bool
    request_bytes: ByteSemaphore
    on_answer: Callable[[UpstreamAnswer], None] | None = None
    sampling: SamplingOverride = field(default_factory=SamplingOverride)


class Route:
    """The `ModelRoute` of `HttpGateway.open`."""

    def __init__(
        self,
        node: str,
        endpoint: Endpoint,
        upstream: Upstream,
        log: CallLog,
        rules: Rules,
        on_close: Callable[[], None],
        publish: Callable[[float], Awaitable[Endpoint]],
    ) -> None:
        self.node = node
        self._endpoint = endpoint
        self.upstream = upstream
        self._log = log
        self._rules = rules
        self._on_close = on_close
        self._publish = publish
        self._redactor = redactor()
        self.pause = pause_switch()
        """During a pause of the rollout, no call goes to the upstream or back to the agent."""
        # A deferred request leaves a gap, so the count of calls is not the last number.
        numbers = (int(call.id.rpartition(".")[2]) for call in log.outline)
        self._next = max(numbers, default=0)
        self._answered = 0
        """The calls of the agent's work that were answered since the route was opened."""
        self._gate: CallGate | None = None
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.closed = False
        self.request_bytes = rules.request_bytes
        """The bytes of the requests in progress."""
        self.parsing = asyncio.Lock()
        self._callbacks: list[Callable[[BenchFlowError], None]] = []
        self.error: BenchFlowError | None = None
        """The first error of budget, record limit, replay or store; see `fail`."""
        self._is_public = self._is_reached = False
        self.refused = 0
        """The requests to the public URL without the token of the route."""

    @property
    def endpoint(self) -> Endpoint:
        """The address for the `model` door of the sandbox."""
        return self._endpoint

    async def publish(self, *, seconds: float) -> Endpoint:
        """Let other machines reach the route with a token; see `SupportsPublicAccess`."""
        endpoint = await self._publish(seconds)
        self._is_public = True
        return endpoint

    @property
    def unreached(self) -> HostError | None:
        """An error if the route is public and no call has reached it; see `KnowsReach`."""
        if not self._is_public or self._is_reached:
            return None
        return HostError(
            "no model call of the sandbox has reached the public URL of the gateway with its token;"
            f" {self.refused} requests came without the token",
            hint="check --gateway-url from inside of the sandbox, or use --model-access tunnel",
        )

    @property
    def in_flight(self) -> int:
        """The number of calls without a complete answer."""
        return len(self._tasks)

    @property
    def unplayed(self) -> int:
        """The number of recorded calls of the agent's work that the agent has not repeated."""
        return self._rules.replay.unplayed

    def watch(self, on_error: Callable[[BenchFlowError], None]) -> None:
        """Call `on_error` once with the `error` of this route, now if the route has an error."""
        if self.error is not None:
            on_error(self.error)
        else:
            self._callbacks.append(on_error)

    def on_call(self, callback: Callable[[ModelCall], None]) -> None:
        """Call `callback` with the outline of each call after it is recorded."""
        self._log.on_call = callback

    def before_call(self, gate: CallGate) -> None:
        """Await `gate` before each call that the upstream would answer; see `SupportsCallGate`."""
        self._gate = gate

    async def pass_gate(self, draft: Draft) -> None:
        """Wait until the call may go to the upstream.

        Raises:
            DeferredError: The agent must repeat its request later.
        """
        if self._gate is None:
            return
        number = self._answered + 1 if draft.purpose == "main" else None
        digest = request_digest(draft.api, self._clean(draft.request))
        if not await self._gate(PendingCall(number=number, digest=digest)):
            raise DeferredError

    def _clean(self, request: Document) -> Document:
        """Return a request as the record has it: without secrets."""
        return cast("Document", self._redactor.value(request))

    def fail(self, error: BenchFlowError) -> None:
        """Store and report the error that ends the agent's work. Only the first error counts."""
        if self.error is None:
            self.error = error
            for callback in self._callbacks:
                callback(error)

    def calls(self) -> Sequence[ModelCall]:
        """Read the finished calls from the record."""
        return self._log.read()

    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the conversation of the last answered call; see `SupportsMessages`."""
        return conversation_of(self.calls())

    def outline(self) -> Sequence[ModelCall]:
        """Return the calls in the order of their end, without requests and responses."""
        return tuple(self._log.outline)

    async def quiesce(self, timeout: float) -> bool:
        """Wait until no call is in flight; false after `timeout` seconds."""
        try:
            async with running_timeout(timeout, self.pause):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def swap(self, upstream: Endpoint) -> None:
        """Send later calls to `upstream`; see `ModelRoute`."""
        self.upstream = self.upstream.at(upstream)

    async def aclose(self) -> None:
        """Refuse later calls, cancel the calls in flight, and flush the record to the disk."""
        if self.closed:
            return
        self.closed = True
        self._on_close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_CLOSE_SEC)
        self._log.close()

    @contextmanager
    def flight(self) -> Generator[None]:
        """Count the calling task as a call in flight. Closing the route cancels the task."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()

    def begin(self, api: ModelApi, request: Document, text: bytes) -> Draft:
        """Return the draft of the next call. `text` is the text of its request."""
        self._is_reached = True
        self._next += 1
        call_id = f"{self.node}.{self._next:06d}"
        draft = Draft(call_id, self.node, api, self._rules.purposes.of(request), request, text)
        # The price is of the model that the upstream gets, not of the agent's name for it.
        draft.model = self.upstream.model or text_of(request.get("model")) or None
        return draft

    def override_of(self, call: str) -> Callable[[Document, Wire], Document] | None:
        """Return the change of a call's request to the upstream; None changes nothing."""
        sampling = self._rules.sampling
        if not sampling:
            return None
        return lambda request, wire: sampling.apply(request, wire, call)

    def replay(self, draft: Draft) -> bool:
        """Answer the call from the record. Return false if the upstream must answer.

        Raises:
            RefusedError: The replay diverged, and the rules do not send such calls to the upstream.
        """
        try:
            recorded = self._rules.replay.take(draft.api, self._clean(draft.request))
        except DivergedError as error:
            draft.diverged = True
            diverged = ReplayDivergedError(f"the call {draft.id!r} diverged: {error}")
            self.fail(diverged)
            if not self._rules.diverged_go_live:
                raise RefusedError("diverged", 400, str(diverged)) from error
            if draft.purpose == "main":
                self._rules.replay.stop()
            return False
        if recorded is None:
            return False
        draft.copy_recorded_answer(recorded)
        return True

    def admit(self) -> None:
        """Refuse the call if the record of the rollout is full. The call is not recorded.

        Raises:
            RefusedError: The record is full.
        """
        if isinstance(self.error, RecordLimitError):
            raise RefusedError("budget", 429, f"the record of the rollout is full: {self.error}")

    def charge(self, draft: Draft, upstream: Upstream) -> None:
        """Count a call that goes to `upstream`.

        Raises:
            RefusedError: The budget is used up, or the request would exceed the record's limit.
        """
        try:
            self._log.check_space(draft.size)
            draft.model = upstream.model or draft.model
            self._rules.meter.check_messages(draft.api, draft.text)
            self._rules.meter.begin(draft.model)
        except RecordLimitError as error:
            raise self._end_at_limit(draft, error) from error
        except CallBudgetError as error:
            self.fail(error)
            status = 429 if draft.api.startswith("openai") else 402
            raise RefusedError("budget", status, f"the budget is used up: {error}") from error
        draft.charged = True

    def note_answer(self, url: str, status: int, retry_after: float | None = None) -> None:
        """Report how the upstream at `url` answers a call."""
        if self._rules.on_answer is not None:
            self._rules.on_answer(UpstreamAnswer(url, status, retry_after))

    def record(self, draft: Draft) -> None:
        """Write the call, unless it is recorded. Call this before the end of the answer is sent.

        Raises:
            StoreError: The call could not be written.
            RefusedError: The rollout's record is full. It has this call without its texts.
        """
        if draft.recorded:
            return
        draft.recorded = True
        self._answered += draft.purpose == "main" and draft.status == 200 and draft.error is None
        cost = self._rules.meter.end(draft.model, draft.usage) if draft.charged else None
        try:
            self._log.append(draft.to_call(cost), draft.text, draft.upstream_text)
        except RecordLimitError as error:
            raise self._end_at_limit(draft, error, cost) from error
        except StoreError as error:
            self.fail(error)
            raise

    def _end_at_limit(
        self, draft: Draft, error: RecordLimitError, cost: float | None = None
    ) -> RefusedError:
        """End the agent's work, record the call without its texts, and return the refusal."""
        refused = RefusedError("budget", 429, str(error))
        draft.recorded, draft.status = True, refused.status
        draft.error = f"record_limit: {error}"
        self.fail(error)
        try:
            self._log.append_stub(draft.to_call(cost))
        except StoreError as lost:
            return RefusedError("internal", 500, str(lost))
        return refused
