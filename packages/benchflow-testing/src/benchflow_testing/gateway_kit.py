"""The conformance kit of a ModelGateway."""

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from benchflow_contracts.errors import AgentError, BenchFlowError, ReplayDivergedError
from benchflow_contracts.gateway import CallBudget, ModelCall, ModelGateway, ModelRoute
from benchflow_contracts.sandbox import ModelEndpoint

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks

_PATIENCE_SEC = 30.0


@dataclass(frozen=True, slots=True)
class GatewaySubject:
    """A gateway under test, two models behind it, and how an agent calls one."""

    gateway: ModelGateway
    upstream: ModelEndpoint
    """A model that answers every call; give it a header, to see that it is kept secret."""
    other: ModelEndpoint
    """One whose answers differ."""
    call: Callable[[ModelRoute, str], Awaitable[str | None]]
    """Makes one call with this user text, as an agent does: by HTTP to the line's endpoint.

    Returns the answer's text, or `None` when the line refused the call.
    """
    slow: Callable[[ModelRoute], AbstractAsyncContextManager[None]]
    """Holds a call in flight: entered when the line counts it, ended on exit."""

    @asynccontextmanager
    async def line(
        self,
        node: str = "n1",
        *,
        replay: Sequence[ModelCall] = (),
        budget: CallBudget | None = None,
    ) -> AsyncGenerator[ModelRoute, None]:
        """Open a line of a new rollout and close it in the end."""
        rollout = f"rollout-{uuid4().hex[:8]}"
        line = await self.gateway.open(
            rollout, node, upstream=self.upstream, replay=replay, budget=budget
        )
        try:
            yield line
        finally:
            await line.aclose()

    async def said(self, line: ModelRoute, text: str) -> str:
        """Make a call that must be answered."""
        answer = await self.call(line, text)
        expect(answer is not None, f"the call {text!r} was refused")
        return answer or ""

    async def refused(self, line: ModelRoute, text: str) -> None:
        """Make a call that must be refused."""
        expect_equal(await self.call(line, text), None, f"the answer to {text!r}")


GatewayCheck = Check[GatewaySubject]


@promise()
async def every_call_is_on_the_record(subject: GatewaySubject) -> None:
    """With request, answer, status, node and times, in the order in which they began."""
    async with subject.line("n7") as line:
        expect_equal(list(line.calls()), [], "the calls of a new line")
        started = time.time()
        for text in ("one", "two"):
            await subject.said(line, text)
        calls = line.calls()
        expect_equal(len(calls), 2, "the number of calls")
        expect_equal(len({call.id for call in calls}), 2, "the number of different ids")
        known = [(call.id, call.usage, call.finished_at) for call in calls]
        outline = [(call.id, call.usage, call.finished_at) for call in line.outline()]
        expect_equal(outline, known, "the outline of the calls")
        for call, text in zip(calls, ("one", "two"), strict=True):
            expect_equal((call.node, call.status), ("n7", 200), "node and status")
            expect(text in str(call.request), f"the request does not have {text!r}")
            expect(call.response, "the answer is not on the record")
            expect(not call.replayed and not call.diverged, "a fresh call says it is a replay")
            expect(started - 1 <= call.started_at <= call.finished_at, "the times run back")


@promise()
async def lines_are_apart(subject: GatewaySubject) -> None:
    """Each has an endpoint that names rollout and node, and calls of its own."""
    async with subject.line("n1") as one, subject.line("n2") as two:
        await subject.said(one, "to the first")
        expect_equal(len(one.calls()), 1, "the calls of the first line")
        expect_equal(len(two.calls()), 0, "the calls of the second line")
        for line, node in ((one, "n1"), (two, "n2")):
            upstream = line.endpoint.upstream
            expect("rollout-" in upstream and node in upstream, f"{upstream!r} names no {node!r}")


@promise()
async def recorded_calls_are_replayed(subject: GatewaySubject) -> None:
    """The same requests get the same answers, marked so; then the model answers."""
    async with subject.line("n1") as line:
        said = [await subject.said(line, text) for text in ("one", "two")]
        recorded = line.calls()
    async with subject.line("n2", replay=recorded) as line:
        again = [await subject.said(line, text) for text in ("one", "two")]
        expect_equal(again, said, "the answers of the replay")
        await subject.said(line, "three")
        calls = line.calls()
        expect_equal([call.replayed for call in calls], [True, True, False], "what is marked")
        expect_equal((line.unplayed, line.error), (0, None), "unplayed calls and error")
        expect_equal({call.node for call in calls}, {"n2"}, "the node of the replayed calls")
        found = [call.response for call in calls[:2]]
        expect_equal(found, [call.response for call in recorded], "the recorded answers")


@promise()
async def a_diverging_call_is_refused(subject: GatewaySubject) -> None:
    """It gets no answer and is marked `diverged`, and whoever watches the line is told."""
    async with subject.line("n1") as line:
        await subject.said(line, "one")
        recorded = line.calls()
    async with subject.line("n2", replay=recorded) as line:
        told: list[BenchFlowError] = []
        line.watch(told.append)
        expect_equal((line.error, line.unplayed), (None, 1), "error and unplayed calls at first")
        await subject.refused(line, "something else")
        (call,) = line.calls()
        expect(call.diverged, "the call is not marked")
        expect_equal(call.response, None, "the answer to the diverging call")
        expect(isinstance(line.error, ReplayDivergedError), f"the line's error is {line.error!r}")
        line.watch(told.append)
        expect_equal(told, [line.error] * 2, "what a watcher and a late one are told")
        expect_equal(line.unplayed, 1, "the unplayed calls in the end")


@promise()
async def a_budget_refuses_the_call_that_would_pass_it(subject: GatewaySubject) -> None:
    """Calls are answered up to the budget; the next one is refused, and on the record."""
    async with subject.line(budget=CallBudget(calls=2)) as line:
        await subject.said(line, "one")
        await subject.said(line, "two")
        await subject.refused(line, "three")
        expect_equal(len(line.calls()), 3, "the number of calls on the record")
        expect(line.calls()[-1].status >= 400, "the refused call has no error status")
        expect(isinstance(line.error, AgentError), f"the line's error is {line.error!r}")
    async with subject.line(budget=CallBudget(calls=0)) as line:
        await subject.refused(line, "one")
    async with subject.line(budget=CallBudget(tokens=0)) as line:
        await subject.refused(line, "one")


@promise()
async def quiesce_waits_for_what_is_in_flight(subject: GatewaySubject) -> None:
    """`in_flight` counts it; `quiesce` is false while it runs and true afterwards."""
    async with subject.line() as line:
        expect_equal(line.in_flight, 0, "the calls in flight on a new line")
        expect(await line.quiesce(_PATIENCE_SEC), "an idle line is not quiet")
        async with subject.slow(line):
            expect_equal(line.in_flight, 1, "the calls in flight")
            expect(not await line.quiesce(0.05), "the line is quiet while a call runs")
        expect(await line.quiesce(_PATIENCE_SEC), "the line does not become quiet")
        expect_equal(line.in_flight, 0, "the calls in flight in the end")


@promise()
async def a_swap_sends_later_calls_elsewhere(subject: GatewaySubject) -> None:
    """The other model answers, at the same endpoint, on this line alone."""
    async with subject.line("n1") as line, subject.line("n2") as untouched:
        endpoint = line.endpoint
        first = await subject.said(line, "hello")
        await line.swap(subject.other)
        expect_equal(line.endpoint, endpoint, "the endpoint")
        expect(await subject.said(line, "hello") != first, "the first model still answers")
        expect_equal(await subject.said(untouched, "hello"), first, "another line's answer")


@promise()
async def a_closed_line_keeps_its_record(subject: GatewaySubject) -> None:
    """Later calls are refused, what was recorded stays, and other lines go on."""
    async with subject.line("n1") as line, subject.line("n2") as other:
        await subject.said(line, "one")
        recorded = list(line.calls())
        await line.aclose()
        await line.aclose()
        await subject.refused(line, "two")
        expect_equal(list(line.calls())[:1], recorded, "what was recorded")
        await subject.said(other, "one")


@promise()
async def credentials_are_on_no_record(subject: GatewaySubject) -> None:
    """No value of the upstream's headers is in a record or in the line's endpoint."""
    async with subject.line() as line:
        await subject.said(line, "one")
        text = "".join(call.model_dump_json() for call in line.calls())
        text += str(line.endpoint.model_dump())
        for name, value in subject.upstream.headers.items():
            expect(value not in text, f"the value of the header {name!r} is there")


_CHECKS: tuple[GatewayCheck, ...] = (
    every_call_is_on_the_record,
    lines_are_apart,
    recorded_calls_are_replayed,
    a_diverging_call_is_refused,
    a_budget_refuses_the_call_that_would_pass_it,
    quiesce_waits_for_what_is_in_flight,
    a_swap_sends_later_calls_elsewhere,
    a_closed_line_keeps_its_record,
    credentials_are_on_no_record,
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
