"""A model gateway in memory."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchflow_contracts.door import Endpoint
from benchflow_contracts.errors import AgentError, BenchFlowError, ReplayDivergedError
from benchflow_contracts.gateway import CallBudget, CallGate, ModelCall, PendingCall, PolicyEndpoint
from benchflow_contracts.step import Usage

from .faults import FakeFaults, Fault

Model = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns the body of the response to the body of a request."""

_USAGE = Usage(input_tokens=1, output_tokens=1)


def echo(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the request. This is the default model of a fake gateway."""
    return {"echo": dict(request)}


class FakeModelRoute:
    """The route of one node. `call` replaces the agent's HTTP request.

    A call costs one input and one output token, and no money. A call is in flight between
    `begin` and `end`.
    """

    def __init__(
        self,
        gateway: "FakeModelGateway",
        node: str,
        endpoint: Endpoint,
        upstream: Endpoint,
        replay: Sequence[ModelCall],
        budget: CallBudget | None,
    ) -> None:
        self.upstream = upstream
        self.closed = False
        self._gateway = gateway
        self._node = node
        self._endpoint = endpoint
        self._replay = list(replay)
        self._budget = budget or CallBudget()
        self._calls: list[ModelCall] = []
        self._watchers: list[Callable[[BenchFlowError], None]] = []
        self._call_watcher: Callable[[ModelCall], None] | None = None
        self._gate: CallGate | None = None
        self.deferred = 0
        """The number of requests that the gate deferred."""
        self.error: BenchFlowError | None = None
        self._in_flight = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def endpoint(self) -> Endpoint:
        """An endpoint whose URL has the rollout and the node. No server listens there."""
        return self._endpoint

    @property
    def in_flight(self) -> int:
        """The number of calls between `begin` and `end`."""
        return self._in_flight

    @property
    def unplayed(self) -> int:
        """The number of recorded calls that were not repeated."""
        return len(self._replay)

    def watch(self, on_error: Callable[[BenchFlowError], None]) -> None:
        """Call `on_error` with the `error` of the route."""
        self._watchers.append(on_error)
        if self.error is not None:
            on_error(self.error)

    def on_call(self, callback: Callable[[ModelCall], None]) -> None:
        """Call `callback` with each call from now on."""
        self._call_watcher = callback

    def before_call(self, gate: CallGate) -> None:
        """Await `gate` before each call that is not replayed."""
        self._gate = gate

    def fail(self, error: BenchFlowError) -> None:
        """End the agent's work with an error. Only the first error counts."""
        if self.error is None:
            self.error = error
            for watcher in self._watchers:
                watcher(error)

    def calls(self) -> Sequence[ModelCall]:
        """Return the calls so far."""
        return list(self._calls)

    def outline(self) -> Sequence[ModelCall]:
        """Return the calls so far."""
        return list(self._calls)

    def begin(self) -> None:
        """Count a call as in flight until `end`."""
        self._in_flight += 1
        self._quiet.clear()

    def end(self) -> None:
        """End a call."""
        self._in_flight -= 1
        if not self._in_flight:
            self._quiet.set()

    @asynccontextmanager
    async def slow_call(self, request: Mapping[str, Any]) -> AsyncGenerator[None]:
        """Keep one call in flight inside the block, and record it at the end."""
        began = self.upstream
        self.begin()
        try:
            yield
            call = self._answer_by(began, request)
            if self.upstream.url == began.url and _version(self.upstream) != _version(began):
                update = {"end_policy_version": _version(self.upstream)}
                call = call.model_copy(update=update)
            self._calls.append(call)
        finally:
            self.end()

    async def call(self, request: Mapping[str, Any]) -> ModelCall:
        """Make one call and return its record, also if the call is refused."""
        self.begin()
        try:
            await self._gateway.faults.raise_or_hang("call")
            if not await self._may_pass(request):
                self.deferred += 1
                return self._refusal(request, 503, "the call is deferred")
            call = self._answer(request)
            self._calls.append(call)
            if self._call_watcher is not None:
                self._call_watcher(call)
            return call
        finally:
            self.end()

    async def _may_pass(self, request: Mapping[str, Any]) -> bool:
        if self._gate is None or self._replay or self.closed:
            return True
        answered = sum(call.status == 200 for call in self._calls)
        digest = json.dumps(dict(request), sort_keys=True)
        return await self._gate(PendingCall(number=answered + 1, digest=digest))

    async def quiesce(self, timeout: float) -> bool:
        """Wait until no call is in flight."""
        await self._gateway.faults.raise_or_hang("quiesce")
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    async def swap(self, upstream: Endpoint) -> None:
        """Answer later calls with the model of `upstream`."""
        await self._gateway.faults.raise_or_hang("swap")
        self.upstream = upstream

    async def aclose(self) -> None:
        """Refuse later calls. The record stays. Idempotent."""
        self.closed = True

    def _answer(self, request: Mapping[str, Any]) -> ModelCall:
        if self.closed:
            return self._refusal(request, 503, "the route is closed")
        if self._replay:
            recorded = self._replay[0]
            if dict(recorded.request) != dict(request):
                refused = self._refusal(request, 409, "not the recorded request")
                self.fail(ReplayDivergedError(f"the call {refused.id!r} is not {recorded.id!r}"))
                return refused.model_copy(update={"diverged": True})
            self._replay.pop(0)
            update = {"id": self._gateway.next_id(), "node": self._node, "replayed": True}
            return recorded.model_copy(update=update)
        if self._is_budget_used():
            self.fail(AgentError("the budget of the route is used up"))
            return self._refusal(request, 429, "the budget of the route is used up")
        return self._answer_by(self.upstream, request)

    def _answer_by(self, upstream: Endpoint, request: Mapping[str, Any]) -> ModelCall:
        response = self._gateway.model(upstream)(request)
        update = {"response": response, "usage": _USAGE, "policy_version": _version(upstream)}
        return self._record(request, 200).model_copy(update=update)

    def _is_budget_used(self) -> bool:
        answered = [call for call in self._calls if call.status == 200 and not call.replayed]
        limits = ((self._budget.calls, 1), (self._budget.tokens, 2))
        return any(top is not None and (len(answered) + 1) * per > top for top, per in limits)

    def _refusal(self, request: Mapping[str, Any], status: int, why: str) -> ModelCall:
        return self._record(request, status).model_copy(update={"error": why})

    def _record(self, request: Mapping[str, Any], status: int) -> ModelCall:
        now = time.time()
        return ModelCall(
            id=self._gateway.next_id(),
            node=self._node,
            api="openai-chat",
            request=dict(request),
            policy_version=_version(self.upstream),
            status=status,
            started_at=now,
            finished_at=now,
        )


def _version(upstream: Endpoint) -> str | None:
    return upstream.policy_version if isinstance(upstream, PolicyEndpoint) else None


class FakeModelGateway:
    """Opens fake routes. `models` maps the URL of an upstream to its model.

    Faults are keyed by `open`, and by each route's `call`, `quiesce` and `swap`.
    """

    def __init__(
        self,
        models: Mapping[str, Model] | None = None,
        *,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.routes: list[FakeModelRoute] = []
        """Every opened route, in order."""
        self._models = dict(models or {})
        self._ids = itertools.count(1)

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> FakeModelRoute:
        """Open the route of a node."""
        await self.faults.raise_or_hang("open")
        url = f"http://127.0.0.1:9/rollout/{rollout_id}/node/{node}"
        endpoint = Endpoint(url=url)
        route = FakeModelRoute(self, node, endpoint, upstream, replay, budget)
        self.routes.append(route)
        return route

    async def aclose(self) -> None:
        """Close every route. Idempotent."""
        for route in self.routes:
            await route.aclose()

    def model(self, upstream: Endpoint) -> Model:
        """Return the model of `upstream`."""
        return self._models.get(upstream.url, echo)

    def next_id(self) -> str:
        """Return an id for a call."""
        return f"call-{next(self._ids)}"
