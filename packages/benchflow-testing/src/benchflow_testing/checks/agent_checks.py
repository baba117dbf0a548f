"""Checks of an Agent and its Session."""

import asyncio
from typing import TYPE_CHECKING

from benchflow_contracts.agent import Session
from benchflow_contracts.ask import Answer, Ask
from benchflow_contracts.errors import AgentError, SnapshotError

from benchflow_testing.agent_subject import AgentCheck, AgentSubject, FirstOption
from benchflow_testing.check import expect, expect_equal, expect_error, promise

if TYPE_CHECKING:
    from benchflow_contracts.step import Step


def _lacks_ask_prompt(subject: AgentSubject) -> str | None:
    if not subject.agent.capabilities().ask_user:
        return "capabilities: the agent does not ask"
    return None if subject.ask_prompt else "no `ask_prompt` was given"


def _lacks_endless_prompt(subject: AgentSubject) -> str | None:
    return None if subject.endless_prompt else "no `endless_prompt` was given"


def _lacks_nudges(subject: AgentSubject) -> str | None:
    return None if subject.agent.capabilities().nudges else "capabilities: one prompt only"


def _lacks_snapshots(subject: AgentSubject) -> str | None:
    none = subject.agent.capabilities().session_snapshot == "none"
    return "capabilities: no session snapshots" if none else None


def _has_snapshots(subject: AgentSubject) -> str | None:
    return None if _lacks_snapshots(subject) else "capabilities: session snapshots"


@promise()
async def a_turn_writes_its_steps(subject: AgentSubject) -> None:
    """When `prompt` returns, all steps exist, with the prompt first and the stop reason last."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        expect(session.id, "the session has no id")
        expect_equal(session.steps, [], "the steps before the first prompt")
        session.on_ask_user(FirstOption())
        reason = await session.prompt(subject.prompt)
        steps = session.steps
        expect(steps, "the turn has no steps")
        expect_equal(steps[0].prompt, subject.prompt, "the first step's prompt")
        expect_equal(steps[-1].stop_reason, reason, "the last step's stop reason")
        for step in steps[1:]:
            expect_equal(step.prompt, None, "the prompt of a later step")
        for step in steps[:-1]:
            expect_equal(step.stop_reason, None, "the stop reason of an earlier step")


@promise()
async def each_step_is_reported_once_and_in_order(subject: AgentSubject) -> None:
    """`on_step` gets exactly the steps of `steps`. Their ids differ, and no step ends early."""
    reported: list[Step] = []
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        session.on_step(reported.append)
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        expect_equal(reported, session.steps, "the steps that the handler got")
        expect_equal(len({step.id for step in reported}), len(reported), "the number of ids")
        for step in reported:
            expect(step.started_at <= step.finished_at, f"step {step.id!r} ends before its start")
            expect_equal(step.role, subject.role.name, "the role of a step")


@promise()
async def every_observation_has_its_tool_call(subject: AgentSubject) -> None:
    """An observation names a tool call of this step or of an earlier one."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        known: set[str] = set()
        for step in session.steps:
            known |= {call.id for call in step.tool_calls}
            for observation in step.observations:
                call_id = observation.tool_call_id
                expect(call_id in known, f"tool call {call_id!r} does not exist")


@promise(_lacks_nudges)
async def a_session_takes_a_second_prompt(subject: AgentSubject) -> None:
    """A nudge adds its steps after those of the first turn."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        first = session.steps
        await session.prompt(subject.prompt)
        expect_equal(session.steps[: len(first)], first, "the steps of the first turn")
        expect(len(session.steps) > len(first), "the second turn has no steps")


@promise(_lacks_ask_prompt)
async def an_ask_ends_a_step_and_its_answer_opens_the_next(subject: AgentSubject) -> None:
    """The handler gets each Ask once, after its step was reported. The next step has the answer."""
    user = FirstOption()
    reported: list[Step] = []
    last_asks: list[object] = []

    async def handler(ask: Ask) -> Answer:
        last_asks.append(reported[-1].ask if reported else None)
        return await user(ask)

    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        session.on_step(reported.append)
        session.on_ask_user(handler)
        await session.prompt(subject.ask_prompt or "")
        steps = session.steps
    asked = [at for at, step in enumerate(steps) if step.ask is not None]
    expect(asked, "the agent did not ask")
    expect_equal([steps[at].ask for at in asked], user.asked, "the asks of the steps")
    expect_equal(last_asks, user.asked, "the ask of the last step when the handler was called")
    for at, answer in zip(asked, user.answers, strict=True):
        expect(at + 1 < len(steps), "no step follows the answer")
        expect_equal(steps[at + 1].answer, answer, "the answer that opens the next step")


@promise(_lacks_endless_prompt)
async def cancel_ends_the_turn(subject: AgentSubject) -> None:
    """A running turn ends with `cancelled`, also in its last step."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:

        async def turn() -> None:
            expect_equal(await session.prompt(subject.endless_prompt or ""), "cancelled", "reason")

        async with asyncio.TaskGroup() as group:
            running = group.create_task(turn())
            while not running.done():
                await session.cancel()
                await asyncio.sleep(0.02)
        expect_equal(session.steps[-1].stop_reason, "cancelled", "the last stop reason")


@promise()
async def cancel_does_nothing_when_idle(subject: AgentSubject) -> None:
    """Before a turn and after it, `cancel` changes nothing."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await session.cancel()
        reason = await session.prompt(subject.prompt)
        expect(reason != "cancelled", "an idle cancel reached the next turn")
        await session.cancel()


@promise(_lacks_endless_prompt)
async def a_silent_agent_is_an_error(subject: AgentSubject) -> None:
    """A turn beyond the role's time raises AgentError instead of waiting."""
    async with subject.open_sandbox() as sandbox:
        role = subject.role.model_copy(update={"timeout_sec": 1.0})
        session = await subject.task_agent.connect(sandbox, role)
        try:
            call = session.prompt(subject.endless_prompt or "")
            await expect_error(AgentError, call, "a turn beyond its time")
        finally:
            await session.aclose()


@promise()
async def a_closed_session_takes_no_prompt(subject: AgentSubject) -> None:
    """`aclose` may be repeated; a later prompt raises AgentError."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        await session.aclose()
        await session.aclose()
        await expect_error(AgentError, session.prompt(subject.prompt), "a prompt after aclose")


@promise(_lacks_snapshots)
async def a_session_resumes_from_its_snapshot(subject: AgentSubject) -> None:
    """A new session resumes from a snapshot in the same sandbox and takes a prompt."""
    async with subject.open_sandbox() as sandbox:
        async with subject.session(sandbox) as session:
            session.on_ask_user(FirstOption())
            await session.prompt(subject.prompt)
            snapshot = await session.snapshot()
            expect_equal(snapshot.agent, subject.agent.name, "the agent of the snapshot")
        async with subject.session(sandbox, resume=snapshot) as resumed:
            resumed.on_ask_user(FirstOption())
            reported: list[Step] = []
            resumed.on_step(reported.append)
            await resumed.prompt(subject.prompt)
            expect(reported, "the resumed session has no steps")
            expect_equal(reported[0].prompt, subject.prompt, "the first new step's prompt")


@promise(_has_snapshots)
async def a_session_without_snapshots_raises_an_error(subject: AgentSubject) -> None:
    """`snapshot` raises SnapshotError when the capabilities deny it."""
    async with subject.open_sandbox() as sandbox, subject.session(sandbox) as session:
        await expect_error(SnapshotError, session.snapshot(), "a session snapshot")


@promise()
async def sessions_are_isolated(subject: AgentSubject) -> None:
    """Two sessions in two sandboxes do not share steps, and each ends alone."""

    async def steps_of(session: Session) -> int:
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        return len(session.steps)

    async with (
        subject.open_sandbox() as one,
        subject.open_sandbox() as two,
        subject.session(one) as first,
        subject.session(two) as second,
    ):
        alone = await steps_of(first)
        expect_equal(second.steps, [], "the steps of an idle session")
        await first.aclose()
        expect_equal(await steps_of(second) > 0, alone > 0, "whether the other session works")


AGENT_CHECKS: tuple[AgentCheck, ...] = (
    a_turn_writes_its_steps,
    each_step_is_reported_once_and_in_order,
    every_observation_has_its_tool_call,
    a_session_takes_a_second_prompt,
    an_ask_ends_a_step_and_its_answer_opens_the_next,
    cancel_ends_the_turn,
    cancel_does_nothing_when_idle,
    a_silent_agent_is_an_error,
    a_closed_session_takes_no_prompt,
    a_session_resumes_from_its_snapshot,
    a_session_without_snapshots_raises_an_error,
    sessions_are_isolated,
)
