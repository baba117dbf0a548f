"""A model gateway in memory."""

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchflow_contracts.door import Endpoint
from benchflow_contracts.errors import AgentError, BenchFlowError, ReplayDivergedError
from benchflow_contracts.gateway import CallBudget, ModelCall
from benchflow_contracts.step import Usage

from .faults import FakeFaults, Fault

Model = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Answers the body of a request with the body of a response."""

_USAGE = Usage(input_tokens=1, output_tokens=1)


def echo(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer with the request: the model that a fake gateway has unless told otherwise."""
    return {"echo": dict(request)}


class FakeModelRoute:
    """The route of one node. `call` stands for the agent's HTTP request.

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
        self._told: list[Callable[[BenchFlowError], None]] = []
        self.error: BenchFlowError | None = None
        self._in_flight = 0
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def endpoint(self) -> Endpoint:
        """Its URL names the rollout and the node; nothing listens there."""
        return self._endpoint

    @property
    def in_flight(self) -> int:
        """Calls that were begun and not ended."""
        return self._in_flight

    @property
    def unplayed(self) -> int:
        """Recorded calls that were not asked for again."""
        return len(self._replay)

    def watch(self, on_error: Callable[[BenchFlowError], None]) -> None:
        """Call `on_error` when there is an `error`."""
        self._told.append(on_error)
        if self.error is not None:
            on_error(self.error)

    def fail(self, error: BenchFlowError) -> None:
        """End the agent's work for a reason; the first one counts."""
        if self.error is None:
            self.error = error
            for told in self._told:
                told(error)

    def calls(self) -> Sequence[ModelCall]:
        """The calls answered so far."""
        return list(self._calls)

    def outline(self) -> Sequence[ModelCall]:
        """The calls so far."""
        return list(self._calls)

    def begin(self) -> None:
        """Let a call be in flight until `end`."""
        self._in_flight += 1
        self._quiet.clear()

    def end(self) -> None:
        """End a call that was begun."""
        self._in_flight -= 1
        if not self._in_flight:
            self._quiet.set()

    async def call(self, request: Mapping[str, Any]) -> ModelCall:
        """Make one call and return its record, also that of a refused one."""
        self.begin()
        try:
            await self._gateway.faults.strike("call")
            made = self._answered(request)
            self._calls.append(made)
            return made
        finally:
            self.end()

    async def quiesce(self, timeout: float) -> bool:
        """Wait until no call is in flight."""
        await self._gateway.faults.strike("quiesce")
        try:
            async with asyncio.timeout(timeout):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    async def swap(self, upstream: Endpoint) -> None:
        """Answer later calls with the model of `upstream`."""
        await self._gateway.faults.strike("swap")
        self.upstream = upstream

    async def aclose(self) -> None:
        """Refuse later calls. What was recorded stays. Idempotent."""
        self.closed = True

    def _answered(self, request: Mapping[str, Any]) -> ModelCall:
        if self.closed:
            return self._refused(request, 503, "the route is closed")
        if self._replay:
            recorded = self._replay[0]
            if dict(recorded.request) != dict(request):
                refused = self._refused(request, 409, "not the recorded request")
                self.fail(ReplayDivergedError(f"the call {refused.id!r} is not {recorded.id!r}"))
                return refused.model_copy(update={"diverged": True})
            self._replay.pop(0)
            update = {"id": self._gateway.next_id(), "node": self._node, "replayed": True}
            return recorded.model_copy(update=update)
        if self._spent():
            self.fail(AgentError("the budget of the route is spent"))
            return self._refused(request, 429, "the budget of the route is spent")
        response = self._gateway.model(self.upstream)(request)
        return self._record(request, 200).model_copy(update={"response": response, "usage": _USAGE})

    def _spent(self) -> bool:
        answered = [call for call in self._calls if call.status == 200 and not call.replayed]
        limits = ((self._budget.calls, 1), (self._budget.tokens, 2))
        return any(top is not None and (len(answered) + 1) * per > top for top, per in limits)

    def _refused(self, request: Mapping[str, Any], status: int, why: str) -> ModelCall:
        return self._record(request, status).model_copy(update={"error": why})

    def _record(self, request: Mapping[str, Any], status: int) -> ModelCall:
        now = time.time()
        return ModelCall(
            id=self._gateway.next_id(),
            node=self._node,
            api="openai-chat",
            request=dict(request),
            status=status,
            started_at=now,
            finished_at=now,
        )


class FakeModelGateway:
    """Opens fake routes. `models` maps an upstream URL to what answers there.

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
        """Every route ever opened, in order."""
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
        """Make the route of a node."""
        await self.faults.strike("open")
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
        """Return what answers at `upstream`."""
        return self._models.get(upstream.url, echo)

    def next_id(self) -> str:
        """Return an id for a call."""
        return f"call-{next(self._ids)}"
