"""Checks of an Agent that reads its task and acts on the host, such as a foreign solver."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from benchflow_contracts.agent import Session
from benchflow_contracts.errors import AgentError, SandboxError
from benchflow_contracts.factories import SupportsTask

from benchflow_testing.agent_subject import AgentCheck, AgentSubject, FirstOption
from benchflow_testing.check import CheckFailedError, expect, expect_equal, expect_error, promise

if TYPE_CHECKING:
    from benchflow_contracts.task import Task


def _lacks_task(subject: AgentSubject) -> str | None:
    if not isinstance(subject.agent, SupportsTask):
        return "the agent does not read its task"
    return None if subject.task else "no `task` was given"


def _lacks_wrong_task(subject: AgentSubject) -> str | None:
    return _lacks_task(subject) or (None if subject.wrong_task else "no `wrong_task` was given")


def _lacks_endless_prompt(subject: AgentSubject) -> str | None:
    no_prompt = None if subject.endless_prompt else "no `endless_prompt` was given"
    return _lacks_task(subject) or no_prompt


@promise(_lacks_task)
async def each_task_has_an_agent_of_its_own(subject: AgentSubject) -> None:
    """`for_task` returns an agent of the same name, and changes no agent that exists."""
    agent, task = cast("SupportsTask", subject.agent), cast("Task", subject.task)
    first = agent.for_task(task)
    second = agent.for_task(task.model_copy(update={"id": f"{task.id}-again"}))
    expect_equal(first.name, subject.agent.name, "the name of the agent for a task")
    expect(first is not subject.agent, "`for_task` returned the agent of all tasks")
    expect(first is not second, "two tasks have one agent")


@promise(_lacks_wrong_task)
async def a_task_of_another_kind_is_refused(subject: AgentSubject) -> None:
    """`for_task` raises AgentError with a remedy for a task on which the agent cannot work."""
    agent, task = cast("SupportsTask", subject.agent), cast("Task", subject.wrong_task)
    try:
        agent.for_task(task)
    except AgentError as error:
        expect(error.hint, "the refusal has no remedy")
        return
    raise CheckFailedError(f"the agent took the task {task.id!r}")


@promise(_lacks_task)
async def a_turn_acts_in_its_own_sandbox(subject: AgentSubject) -> None:
    """A session whose sandbox is gone raises an error, and another session still works."""
    async with (
        subject.open_sandbox() as one,
        subject.open_sandbox() as gone,
        subject.session(one) as first,
        subject.session(gone) as second,
    ):
        for session in (first, second):
            session.on_ask_user(FirstOption())
        await gone.teardown()
        errors = (AgentError, SandboxError)
        await expect_error(errors, second.prompt(subject.prompt), "a turn without its sandbox")
        await first.prompt(subject.prompt)
        expect(first.steps, "the session of the other sandbox has no steps")


@promise(_lacks_endless_prompt)
async def nothing_of_an_abandoned_turn_runs_on(subject: AgentSubject) -> None:
    """After a turn was abandoned and its session closed, no task of the agent runs here."""

    async def prompt(session: Session) -> None:
        with suppress(AgentError, SandboxError):
            await session.prompt(subject.endless_prompt or "")

    async with subject.open_sandbox() as sandbox:
        await sandbox.exec("true")  # A sandbox may start tasks of its own at the first call.
        before = asyncio.all_tasks()
        async with subject.session(sandbox) as session, asyncio.TaskGroup() as group:
            turn = group.create_task(prompt(session))
            await asyncio.sleep(0.2)
            turn.cancel()
        left = asyncio.all_tasks() - before
        if left:
            _, left = await asyncio.wait(left, timeout=1.0)
        expect_equal(sorted(task.get_name() for task in left), [], "the tasks that still run")


HOST_AGENT_CHECKS: tuple[AgentCheck, ...] = (
    each_task_has_an_agent_of_its_own,
    a_task_of_another_kind_is_refused,
    a_turn_acts_in_its_own_sandbox,
    nothing_of_an_abandoned_turn_runs_on,
)
