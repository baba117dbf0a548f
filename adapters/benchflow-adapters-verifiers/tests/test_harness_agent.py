"""The agent of harnesses against the conformance kit, with a function in place of a harness."""

import asyncio

from benchflow_adapters_verifiers.harness_agent import HarnessAgent
from benchflow_contracts import Sandbox
from benchflow_testing import AgentSubject, check_agent
from benchflow_testing.fakes import FakeSandboxProvider

ENDLESS = "Wait for ever."


async def harness(sandbox: Sandbox, prompt: str) -> str:
    await sandbox.exec("echo one")
    if prompt == ENDLESS:
        await asyncio.Event().wait()
    return "Done."


def test_the_agent_of_harnesses_keeps_every_promise() -> None:
    subject = AgentSubject(HarnessAgent(harness), FakeSandboxProvider(), endless_prompt=ENDLESS)
    results = asyncio.run(check_agent(subject))
    assert {each.name: each.reason for each in results if each.status == "failed"} == {}
    passed = {each.name for each in results if each.status == "passed"}
    assert passed >= {"cancel_ends_the_turn", "a_silent_agent_is_an_error"}
