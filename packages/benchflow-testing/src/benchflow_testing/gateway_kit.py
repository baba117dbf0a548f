"""The conformance kit of a ModelGateway."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from benchflow_contracts.door import Endpoint
from benchflow_contracts.errors import AgentError, BenchFlowError, ReplayDivergedError
from benchflow_contracts.gateway import (
    CallBudget,
    ModelCall,
    ModelGateway,
    ModelRoute,
    PolicyEndpoint,
)

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks

_PATIENCE_SEC = 30.0


@dataclass(frozen=True, slots=True)
class GatewaySubject:
    """A gateway under test, two models behind it, and a client that acts as an agent."""

    gateway: ModelGateway
    upstream: Endpoint
    """A model that answers every call. Set a header on it, to test that the header stays secret."""
    other: Endpoint
    """Another model, with other answers."""
    call: Callable[[ModelRoute, str], Awaitable[str | None]]
    """Make one call with this user text over HTTP to the route's endpoint, as an agent does.

    Returns the answer's text, or `None` when the route refused the call.
    """
    slow: Callable[[ModelRoute], AbstractAsyncContextManager[None]]
    """Keep a call in flight inside the block. The route counts the call on entry."""

    @asynccontextmanager
    async def route(
        self,
        node: str = "n1",
        *,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> AsyncGenerator[ModelRoute, None]:
        """Open a route of a new rollout, and close it at the end."""
        rollout = f"rollout-{uuid4().hex[:8]}"
        route = await self.gateway.open(
            rollout, node, upstream=self.upstream, replay=replay, budget=budget
        )
        try:
            yield route
        finally:
            await route.aclose()

    async def said(self, route: ModelRoute, text: str) -> str:
        """Make a call that must be answered."""
        answer = await self.call(route, text)
        expect(answer is not None, f"the call {text!r} was refused")
        return answer or ""

    async def refused(self, route: ModelRoute, text: str) -> None:
        """Make a call that must be refused."""
        expect_equal(await self.call(route, text), None, f"the answer to {text!r}")


GatewayCheck = Check[GatewaySubject]


@promise()
async def every_call_is_recorded(subject: GatewaySubject) -> None:
    """A record has request, answer, status, node and times. Records are sorted by start."""
    async with subject.route("n7") as route:
        expect_equal(list(route.calls()), [], "the calls of a new route")
        started = time.time()
        for text in ("one", "two"):
            await subject.said(route, text)
        calls = route.calls()
        expect_equal(len(calls), 2, "the number of calls")
        expect_equal(len({call.id for call in calls}), 2, "the number of different ids")
        known = [(call.id, call.usage, call.finished_at) for call in calls]
        outline = [(call.id, call.usage, call.finished_at) for call in route.outline()]
        expect_equal(outline, known, "the outline of the calls")
        for call, text in zip(calls, ("one", "two"), strict=True):
            expect_equal((call.node, call.status), ("n7", 200), "node and status")
            expect(text in str(call.request), f"the request does not have {text!r}")
            expect(call.response, "the answer is not on the record")
            expect(not call.replayed and not call.diverged, "a fresh call says it is a replay")
            expect(started - 1 <= call.started_at <= call.finished_at, "the times run back")


@promise()
async def routes_are_separate(subject: GatewaySubject) -> None:
    """Each route has its own calls and an endpoint that names rollout and node."""
    async with subject.route("n1") as one, subject.route("n2") as two:
        await subject.said(one, "to the first")
        expect_equal(len(one.calls()), 1, "the calls of the first route")
        expect_equal(len(two.calls()), 0, "the calls of the second route")
        for route, node in ((one, "n1"), (two, "n2")):
            upstream = route.endpoint.url
            expect("rollout-" in upstream and node in upstream, f"{upstream!r} names no {node!r}")


@promise()
async def recorded_calls_are_replayed(subject: GatewaySubject) -> None:
    """Recorded requests get their answers, with `replayed`. Later requests go to the model."""
    async with subject.route("n1") as route:
        said = [await subject.said(route, text) for text in ("one", "two")]
        recorded = route.calls()
    async with subject.route("n2", replay=recorded) as route:
        again = [await subject.said(route, text) for text in ("one", "two")]
        expect_equal(again, said, "the answers of the replay")
        await subject.said(route, "three")
        calls = route.calls()
        expect_equal([call.replayed for call in calls], [True, True, False], "what is marked")
        expect_equal((route.unplayed, route.error), (0, None), "unplayed calls and error")
        expect_equal({call.node for call in calls}, {"n2"}, "the node of the replayed calls")
        found = [call.response for call in calls[:2]]
        expect_equal(found, [call.response for call in recorded], "the recorded answers")


@promise()
async def a_diverging_call_is_refused(subject: GatewaySubject) -> None:
    """A diverging call is refused and recorded as `diverged`, and the watcher is called."""
    async with subject.route("n1") as route:
        await subject.said(route, "one")
        recorded = route.calls()
    async with subject.route("n2", replay=recorded) as route:
        told: list[BenchFlowError] = []
        route.watch(told.append)
        expect_equal((route.error, route.unplayed), (None, 1), "error and unplayed calls at first")
        await subject.refused(route, "something else")
        (call,) = route.calls()
        expect(call.diverged, "the call is not marked")
        expect_equal(call.response, None, "the answer to the diverging call")
        expect(
            isinstance(route.error, ReplayDivergedError), f"the route's error is {route.error!r}"
        )
        route.watch(told.append)
        expect_equal(told, [route.error] * 2, "what a watcher and a late one are told")
        expect_equal(route.unplayed, 1, "the unplayed calls in the end")


@promise()
async def calls_beyond_the_budget_are_refused(subject: GatewaySubject) -> None:
    """Calls are answered up to the budget. The next call is refused and recorded."""
    async with subject.route(budget=CallBudget(calls=2)) as route:
        await subject.said(route, "one")
        await subject.said(route, "two")
        await subject.refused(route, "three")
        expect_equal(len(route.calls()), 3, "the number of calls on the record")
        expect(route.calls()[-1].status >= 400, "the refused call has no error status")
        expect(isinstance(route.error, AgentError), f"the error is {route.error!r}")
    async with subject.route(budget=CallBudget(calls=0)) as route:
        await subject.refused(route, "one")
    async with subject.route(budget=CallBudget(tokens=0)) as route:
        await subject.refused(route, "one")


@promise()
async def quiesce_waits_for_calls_in_flight(subject: GatewaySubject) -> None:
    """`in_flight` counts running calls. `quiesce` returns false until they end."""
    async with subject.route() as route:
        expect_equal(route.in_flight, 0, "the calls in flight on a new route")
        expect(await route.quiesce(_PATIENCE_SEC), "an idle route is not quiet")
        async with subject.slow(route):
            expect_equal(route.in_flight, 1, "the calls in flight")
            expect(not await route.quiesce(0.05), "the route is quiet while a call runs")
        expect(await route.quiesce(_PATIENCE_SEC), "the route does not become quiet")
        expect_equal(route.in_flight, 0, "the calls in flight in the end")


@promise()
async def a_swap_sends_later_calls_to_the_new_upstream(subject: GatewaySubject) -> None:
    """Only on this route, the other model answers at the same endpoint."""
    async with subject.route("n1") as route, subject.route("n2") as untouched:
        endpoint = route.endpoint
        first = await subject.said(route, "hello")
        await route.swap(subject.other)
        expect_equal(route.endpoint, endpoint, "the endpoint")
        expect(await subject.said(route, "hello") != first, "the first model still answers")
        expect_equal(await subject.said(untouched, "hello"), first, "another route's answer")


@promise()
async def calls_have_the_version_of_their_weights(subject: GatewaySubject) -> None:
    """Each call has the policy version of the endpoint that it went to, also after a swap."""
    old, new = (
        PolicyEndpoint(url=each.url, headers=each.headers, policy_version=version)
        for each, version in ((subject.upstream, "old"), (subject.other, "new"))
    )
    async with subject.route() as route:
        await route.swap(old)
        await subject.said(route, "hello")
        await route.swap(new)
        await subject.said(route, "hello")
        versions = [call.policy_version for call in route.calls()]
        expect_equal(versions, ["old", "new"], "the versions of the calls")


@promise()
async def a_call_with_new_weights_is_mixed(subject: GatewaySubject) -> None:
    """A swap to the same URL during a call names both versions on the call. A later call has one.

    The weights at the URL changed while the model generated, so no trainer may train on the call
    without knowing.
    """
    old, new = (
        PolicyEndpoint(
            url=subject.upstream.url, headers=subject.upstream.headers, policy_version=version
        )
        for version in ("old", "new")
    )
    async with subject.route() as route:
        await route.swap(old)
        async with subject.slow(route):
            await route.swap(new)
        expect(await route.quiesce(_PATIENCE_SEC), "the route does not become quiet")
        await subject.said(route, "hello")
        versions = [(c.policy_version, c.end_policy_version, c.is_mixed) for c in route.calls()]
        expected = [("old", "new", True), ("new", None, False)]
        expect_equal(versions, expected, "the versions of the calls")


@promise()
async def a_closed_route_keeps_its_record(subject: GatewaySubject) -> None:
    """Later calls are refused, the record stays, and other routes continue."""
    async with subject.route("n1") as route, subject.route("n2") as other:
        await subject.said(route, "one")
        recorded = list(route.calls())
        await route.aclose()
        await route.aclose()
        await subject.refused(route, "two")
        expect_equal(list(route.calls())[:1], recorded, "what was recorded")
        await subject.said(other, "one")


@promise()
async def credentials_are_not_recorded(subject: GatewaySubject) -> None:
    """Records and the route's endpoint do not have values of the upstream's headers."""
    async with subject.route() as route:
        await subject.said(route, "one")
        text = "".join(call.model_dump_json() for call in route.calls())
        text += str(route.endpoint.model_dump())
        for name, value in subject.upstream.headers.items():
            expect(value not in text, f"the value of the header {name!r} is there")


_CHECKS: tuple[GatewayCheck, ...] = (
    every_call_is_recorded,
    routes_are_separate,
    recorded_calls_are_replayed,
    a_diverging_call_is_refused,
    calls_beyond_the_budget_are_refused,
    quiesce_waits_for_calls_in_flight,
    a_swap_sends_later_calls_to_the_new_upstream,
    calls_have_the_version_of_their_weights,
    a_call_with_new_weights_is_mixed,
    a_closed_route_keeps_its_record,
    credentials_are_not_recorded,
)


def gateway_checks() -> list[GatewayCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_gateway(
    subject: GatewaySubject,
    *,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against `subject.gateway`. It stays open.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
