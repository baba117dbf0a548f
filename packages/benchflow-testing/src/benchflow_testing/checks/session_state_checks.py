"""Checks of a Session in a live fork: `capture`, `Agent.attach` and `answer`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchflow_contracts.agent import Session, SessionState
from benchflow_contracts.ask import Answer, Ask
from benchflow_contracts.errors import AgentError, SnapshotError
from benchflow_contracts.sandbox import Sandbox, SandboxImage

from benchflow_testing.agent_subject import AgentCheck, AgentSubject, FirstOption
from benchflow_testing.check import (
    CheckSkippedError,
    expect,
    expect_equal,
    expect_error,
    promise,
)
from benchflow_testing.sandbox_subject import until

if TYPE_CHECKING:
    from benchflow_contracts.step import Step


def _lacks_live(subject: AgentSubject) -> str | None:
    proven = "live" in subject.agent.capabilities().proven
    return None if proven else "not claimed: live sessions"


def _lacks_live_asks(subject: AgentSubject) -> str | None:
    if "live-ask" not in subject.agent.capabilities().proven:
        return "not claimed: live sessions with a pending question"
    return None if subject.ask_prompt else "no `ask_prompt` was given"


def _lacks_live_busy(subject: AgentSubject) -> str | None:
    return _lacks_live(subject) or (
        None if subject.endless_prompt else "no `endless_prompt` was given"
    )


@promise(_lacks_live)
async def a_session_is_captured_at_a_turn_boundary(subject: AgentSubject) -> None:
    """The child's session has the same id and steps. Both sessions take a further prompt."""
    async with _box(subject) as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        async with _captured(subject, sandbox, session) as (state, image):
            expect_equal(state.ask, None, "the pending Ask")
            expect_equal(list(state.steps), session.steps, "the steps of the state")
            async with _child(subject, sandbox, state, image) as other:
                expect_equal(other.id, session.id, "the session's id")
                expect_equal(other.steps, session.steps, "the steps in the child")
                await _continues(subject, other)
            await _continues(subject, session)


@promise(_lacks_live)
async def a_session_state_is_json(subject: AgentSubject) -> None:
    """A state that was written as JSON and read again gives the same session."""
    async with _box(subject) as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        async with _captured(subject, sandbox, session) as (state, image):
            read = SessionState.model_validate_json(state.model_dump_json())
            expect_equal(read, state, "the state that was written and read")
            async with _child(subject, sandbox, read, image) as other:
                await _continues(subject, other)


@promise(_lacks_live_asks)
async def a_pending_ask_continues_in_each_child(subject: AgentSubject) -> None:
    """Each child gets its own answer and finishes the turn, and so does the parent."""
    before: list[Step] = []
    asks: list[Ask] = []

    async def fork(ask: Ask) -> Answer:
        if asks:
            return await FirstOption()(ask)
        asks.append(ask)
        before.extend(session.steps)
        async with _captured(subject, sandbox, session) as (state, image):
            expect_equal(state.ask, ask, "the Ask of the state")
            for option in ask.questions[0].options[:2]:
                answer = Answer.choose(ask, option.id)
                async with _child(subject, sandbox, state, image) as other:
                    expect_equal(await _rest(other, answer), before, "the steps before the answer")
        return await FirstOption()(ask)

    async with _box(subject) as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(fork)
        reason = await session.prompt(subject.ask_prompt or "")
        expect(asks, "the agent asked nothing")
        expect_equal(session.steps[: len(before)], before, "the parent's earlier steps")
        expect_equal(session.steps[-1].stop_reason, reason, "the parent's stop reason")


@promise(_lacks_live_asks)
async def a_captured_ask_is_answered_once(subject: AgentSubject) -> None:
    """A second `answer` to the same Ask raises RuntimeError."""

    async def fork(ask: Ask) -> Answer:
        if not done:
            done.append(ask)
            async with (
                _captured(subject, sandbox, session) as (state, image),
                _child(subject, sandbox, state, image) as other,
            ):
                answer = await FirstOption()(ask)
                await other.answer(answer)
                await expect_error(RuntimeError, other.answer(answer), "a second `answer`")
        return await FirstOption()(ask)

    done: list[Ask] = []
    async with _box(subject) as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(fork)
        await session.prompt(subject.ask_prompt or "")
        expect(done, "the agent asked nothing")


@promise(_lacks_live)
async def answer_without_a_restored_ask_is_refused(subject: AgentSubject) -> None:
    """`answer` raises RuntimeError in a new session, and in a session captured between turns."""
    async with _box(subject) as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await expect_error(RuntimeError, session.answer(Answer()), "`answer` before a prompt")
        await session.prompt(subject.prompt)
        async with (
            _captured(subject, sandbox, session) as (state, image),
            _child(subject, sandbox, state, image) as other,
        ):
            await expect_error(RuntimeError, other.answer(Answer()), "`answer` without an Ask")


@promise(_lacks_live)
async def attach_refuses_the_state_of_another_agent(subject: AgentSubject) -> None:
    """`attach` raises AgentError, also if the process is not in the sandbox."""
    async with _box(subject) as sandbox, subject.session(sandbox) as session:
        session.on_ask_user(FirstOption())
        await session.prompt(subject.prompt)
        async with _captured(subject, sandbox, session) as (state, image):
            foreign = state.model_copy(update={"agent": "somebody else"})
            child = await subject.provider.create(sandbox.spec, image=image)
            try:
                call = subject.agent.attach(child, subject.role, foreign)
                await expect_error(AgentError, call, "attach with another agent's state")
            finally:
                await child.teardown()
        async with subject.open_sandbox() as other:
            call = subject.agent.attach(other, subject.role, state)
            await expect_error(AgentError, call, "attach where the process is not")


@promise(_lacks_live_busy)
async def a_busy_session_is_not_captured(subject: AgentSubject) -> None:
    """Without a question in a turn, `capture` raises a retryable error; the turn continues."""
    async with _box(subject) as sandbox, subject.session(sandbox) as session:

        async def turn() -> None:
            expect_equal(await session.prompt(subject.endless_prompt or ""), "cancelled", "reason")

        async def refused() -> bool:
            async with sandbox.freeze():
                try:
                    await session.capture()
                except SnapshotError as error:
                    errors.append(error)
            return bool(errors)

        errors: list[SnapshotError] = []
        async with asyncio.TaskGroup() as group:
            running = group.create_task(turn())
            await until(refused, "a busy session is carried")
            while not running.done():
                await session.cancel()
                await asyncio.sleep(0.02)
        expect(errors[0].retryable, "the error does not say that a later try may do")


@asynccontextmanager
async def _box(subject: AgentSubject) -> AsyncGenerator[Sandbox, None]:
    if "live" not in (await subject.provider.capabilities()).snapshot_levels:
        raise CheckSkippedError("not claimed: the provider has no live snapshots")
    async with subject.open_sandbox() as sandbox:
        yield sandbox


@asynccontextmanager
async def _captured(
    subject: AgentSubject, sandbox: Sandbox, session: Session
) -> AsyncGenerator[tuple[SessionState, SandboxImage], None]:
    async with sandbox.freeze():
        state = await session.capture()
        image = await sandbox.snapshot("live")
    try:
        yield state, image
    finally:
        await subject.provider.discard(image)


@asynccontextmanager
async def _child(
    subject: AgentSubject, sandbox: Sandbox, state: SessionState, image: SandboxImage
) -> AsyncGenerator[Session, None]:
    child = await subject.provider.create(sandbox.spec, image=image)
    try:
        session = await subject.agent.attach(child, subject.role, state)
        try:
            session.on_ask_user(FirstOption())
            yield session
        finally:
            await session.aclose()
    finally:
        await child.teardown()


async def _continues(subject: AgentSubject, session: Session) -> None:
    before = session.steps
    told: list[Step] = []
    session.on_step(told.append)
    reason = await session.prompt(subject.prompt)
    expect(told, "the turn after the fork left no step")
    expect_equal(session.steps, [*before, *told], "the steps after the fork")
    expect_equal(told[0].prompt, subject.prompt, "the first new step's prompt")
    expect_equal(told[-1].stop_reason, reason, "the last step's stop reason")


async def _rest(session: Session, answer: Answer) -> list["Step"]:
    before = session.steps
    told: list[Step] = []
    session.on_step(told.append)
    reason = await session.answer(answer)
    expect(told, "the answer left no step")
    expect_equal(told[0].answer, answer, "the answer that opens the first new step")
    expect_equal(told[-1].stop_reason, reason, "the last step's stop reason")
    expect_equal(session.steps, [*before, *told], "the steps after the answer")
    return before


CAPTURE_CHECKS: tuple[AgentCheck, ...] = (
    a_session_is_captured_at_a_turn_boundary,
    a_session_state_is_json,
    a_pending_ask_continues_in_each_child,
    a_captured_ask_is_answered_once,
    answer_without_a_restored_ask_is_refused,
    attach_refuses_the_state_of_another_agent,
    a_busy_session_is_not_captured,
)
