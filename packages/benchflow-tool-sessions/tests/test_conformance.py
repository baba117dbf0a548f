"""The agent of tool calls against the conformance kit. A caller drives each of its turns."""

import asyncio

import pytest
from benchflow_contracts import Role, SandboxSpec, SupportsActivity
from benchflow_testing import AgentSubject, CheckResult, check_agent
from benchflow_testing.fakes import FakeSandboxProvider
from benchflow_tool_sessions import SessionEndedError, SessionLimits
from benchflow_tool_sessions.agent import ToolAgent
from benchflow_tool_sessions.forks import DriverTree

ENDLESS = "Wait for a call."
_SKIPPED = {
    "an_ask_ends_a_step_and_its_answer_opens_the_next",
    "a_session_without_snapshots_raises_an_error",
    "each_task_has_an_agent_of_its_own",
    "a_task_of_another_kind_is_refused",
    "a_turn_acts_in_its_own_sandbox",
    "nothing_of_an_abandoned_turn_runs_on",
    "a_session_is_captured_at_a_turn_boundary",
    "a_session_state_is_json",
    "a_pending_ask_continues_in_each_child",
    "a_captured_ask_is_answered_once",
    "answer_without_a_restored_ask_is_refused",
    "attach_refuses_the_state_of_another_agent",
    "a_busy_session_is_not_captured",
}
"""The agent does not ask its user, and live forks need the drivers of a rollout."""


async def drive(tree: DriverTree) -> None:
    """Make a call and submit in each turn. Leave a turn of the endless prompt alone."""
    driver, seen = tree.root, 0

    def has_begun() -> bool:
        return driver.turns > seen

    while True:
        await driver.wait(has_begun)
        seen = driver.turns
        if driver.prompt == ENDLESS:
            continue
        try:
            await driver.call("bash", {"command": "echo one"})
            await driver.call("unknown", {})
            driver.submit("Done.")
        except SessionEndedError:
            continue


async def checked() -> list[CheckResult]:
    tree = DriverTree(SessionLimits())
    subject = AgentSubject(
        ToolAgent(tree, SessionLimits()),
        FakeSandboxProvider(),
        role=Role(timeout_sec=30),
        endless_prompt=ENDLESS,
    )
    async with asyncio.TaskGroup() as group:
        caller = group.create_task(drive(tree))
        results = await check_agent(subject)
        caller.cancel()
    return results


def test_the_agent_of_tool_calls_keeps_every_promise() -> None:
    results = asyncio.run(checked())
    assert {each.name: each.reason for each in results if each.status == "failed"} == {}
    skipped = {each.name for each in results if each.status == "skipped"}
    assert skipped == _SKIPPED


def test_a_call_that_a_cancelled_turn_cuts_is_refused() -> None:
    async def check() -> tuple[str, str | None]:
        tree, provider = DriverTree(SessionLimits()), FakeSandboxProvider()
        sandbox = await provider.create(SandboxSpec())
        session = await ToolAgent(tree, SessionLimits()).connect(sandbox, Role())
        began = asyncio.Event()
        assert isinstance(session, SupportsActivity)
        session.on_activity(lambda activity: began.set())

        async def cut_call() -> None:
            await tree.root.wait(lambda: tree.root.state == "open")
            with pytest.raises(SessionEndedError):
                await tree.root.call("bash", {"command": "sleep 600"})

        async with asyncio.TaskGroup() as group:
            turn = group.create_task(session.prompt("Work."))
            group.create_task(cut_call())
            await began.wait()
            await session.cancel()
        return turn.result(), session.steps[-1].stop_reason

    assert asyncio.run(check()) == ("cancelled", "cancelled")
