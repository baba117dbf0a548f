"""The gateway: one listener on loopback, one route for each node, one file for each route."""

import asyncio
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from benchflow_contracts import CallBudget, Endpoint, ModelCall, UpstreamAnswer, UsageError

from .call_log import CallLog
from .limits import Limits
from .meter import Meter
from .prices import Price
from .purpose import Purpose, PurposeRule
from .replay import Replay
from .route import Route, Rules
from .sampling import SamplingOverride
from .server import NAME, RouteKey, Server, route_path
from .space import ByteSemaphore, RecordSize
from .upstream import Client, Upstream, UpstreamKind

if TYPE_CHECKING:
    from .public import Publisher


class HttpGateway:
    """The `ModelGateway` over HTTP, an async context manager. It listens from the first `open`.

    The address of a route has 192 random bits, so nobody can guess it. The calls of a route are in
    `{record}/{rollout}/{node}.jsonl`.
    """

    def __init__(
        self,
        record: Path,
        *,
        kind: UpstreamKind = "same",
        model: str | None = None,
        port: int = 0,
        prices: Mapping[str, Price] | None = None,
        without_tools: Purpose = "aux",
        diverged_go_live: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._record = record
        self._kind: UpstreamKind = kind
        self._model = model
        self._port = port
        self._prices = dict(prices or {})
        self._without_tools: Purpose = without_tools
        self._diverged_go_live = diverged_go_live
        self._limits = limits or Limits()
        self.on_answer: Callable[[UpstreamAnswer], None] | None = None
        """Called with each answer of an upstream to a call of a later route. It must not block."""
        self.sampling = SamplingOverride()
        """Set in each call of a later route."""
        self.publisher: Publisher | None = None
        """Lets later routes be published for other machines."""
        self._routes: dict[RouteKey, tuple[Route, str]] = {}
        self._spaces: dict[str, RecordSize] = {}
        self._lock = asyncio.Lock()
        self._client: Client | None = None
        self._server: Server | None = None
        self._closed = False

    async def open(
        self,
        rollout_id: str,
        node: str,
        *,
        upstream: Endpoint,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> Route:
        """Open the route of a node. If the node has a record, the route continues it.

        Recorded calls count against `budget`; replayed calls do not.

        Raises:
            UsageError: A name is not a valid part of a path, or the route is already open.
            StoreError: The record cannot be opened.
        """
        for name in (rollout_id, node):
            if re.fullmatch(NAME, name) is None:
                raise UsageError(f"{name!r} is not a route name", hint=f"use {NAME}")
        port = await self._start()
        key = rollout_id, node
        if key in self._routes:
            raise UsageError(
                f"the route {rollout_id}/{node} is already open", hint="close it first"
            )
        space = self._spaces.setdefault(rollout_id, RecordSize(self._limits.record_bytes))
        log = CallLog.open(self._record / rollout_id / f"{node}.jsonl", space)
        meter = Meter(budget, self._prices)
        if budget is not None and log.count:
            meter.add_past_calls(log.read())
        token = secrets.token_urlsafe(24)
        address = f"http://127.0.0.1:{port}{route_path(rollout_id, node, token)}"
        route = Route(
            node,
            Endpoint(url=address),
            Upstream(upstream, self._kind, self._model).at(upstream),
            log,
            Rules(
                Replay(replay),
                meter,
                PurposeRule(self._without_tools),
                self._diverged_go_live,
                ByteSemaphore(self._limits.requests_bytes),
                self.on_answer,
                self.sampling,
            ),
            lambda: self._remove(key, route),
            lambda seconds: self._publish(key, route, seconds),
        )
        self._routes[key] = route, token
        return route

    def _remove(self, key: RouteKey, route: Route) -> None:
        self._routes.pop(key, None)
        if self.publisher is not None:
            self.publisher.withdraw(key, route)

    async def _publish(self, key: RouteKey, route: Route, seconds: float) -> Endpoint:
        if self.publisher is None:
            raise UsageError(
                "other machines do not reach this gateway", hint="give it a public address"
            )
        assert self._server is not None, "an open route has a server"
        return await self.publisher.publish(key, route, self._server, self._limits, seconds)

    async def _start(self) -> int:
        async with self._lock:
            if self._closed:
                raise UsageError("the gateway is closed", hint="create a new gateway")
            if self._server is None:
                self._client = Client(self._limits)
                self._server = Server(self._routes.get, self._client, self._limits)
                self._port = await self._server.start(self._port)
        return self._port

    async def aclose(self) -> None:
        """Close every route, then the listener. Idempotent."""
        self._closed = True
        async with asyncio.TaskGroup() as group:
            for route, _ in list(self._routes.values()):
                group.create_task(route.aclose())
        if self.publisher is not None:
            await self.publisher.aclose()
        if self._server is not None:
            await self._server.aclose()
        if self._client is not None:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
