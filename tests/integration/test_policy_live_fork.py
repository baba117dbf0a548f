"""The policy agent in a live fork, while its question waits: its own tool and the portable one."""

import asyncio
from typing import Any

import pytest
from benchflow_agent_policy import policy
from benchflow_contracts import Answer, Ask, Door, Endpoint, Role, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from scripted_llm import ModelReply, ModelRequest, ScriptedLlm, ToolUse

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DAYS = ["Monday", "Tuesday", "Friday"]


def planner(tool: str) -> Any:
    """Ask for a day, write it down, say it."""

    def act(request: ModelRequest) -> ModelReply:
        seen = request.tool_results
        if not seen:
            return ModelReply(tools=(ToolUse(tool, {"question": "Which day?", "options": DAYS}),))
        day = next(day for day in DAYS if day in seen[0])
        if len(seen) == 1:
            return ModelReply(tools=(ToolUse("shell", {"command": f"echo {day} >> days"}),))
        return ModelReply(text=f"It is {day}.")

    return act


@pytest.mark.parametrize(("tool", "switch"), [("ask_user", "0"), ("mcp__benchflow__ask_user", "1")])
def test_three_live_children_each_give_the_waiting_question_an_answer(
    tool: str, switch: str
) -> None:
    role = Role(model="m", env={"BENCHFLOW_ASK_MCP": switch}, timeout_sec=300)
    said: dict[str, tuple[str, str]] = {}

    async def fork(provider: Any, parent: Any, session: Any, ask: Ask) -> None:
        async with parent.freeze():
            carry = await session.capture()
            image = await parent.snapshot("live")
        assert carry.ask == ask
        for day in DAYS:
            child = await provider.create(parent.spec, image=image)
            twin = await policy().attach(child, role, carry)
            assert await twin.answer(Answer.choose(ask, day)) == "end_turn"
            written = await child.exec(["cat", "days"])
            said[day] = (twin.steps[-1].message, written.stdout)
            await twin.aclose()
            await child.teardown()

    async def main() -> Any:
        endpoint = Endpoint(url=f"{llm.url}/v1")
        spec = SandboxSpec(network="model-only", doors=(Door.to(endpoint),))
        async with LocalProvider() as provider:
            can = await provider.capabilities()
            assert "live" in can.snapshot_levels, can.notes
            parent = await provider.create(spec)
            session = await policy().connect(parent, role)

            async def answer(ask: Ask) -> Answer:
                await fork(provider, parent, session, ask)
                return Answer.choose(ask, "Monday")

            session.on_ask_user(answer)
            assert await session.prompt("Plan it.") == "end_turn"
            written = await parent.exec(["cat", "days"])
            await session.aclose()
            return session.steps, written.stdout

    with ScriptedLlm(planner(tool)) as llm:
        steps, written = asyncio.run(main())
    assert said == {day: (f"It is {day}.", f"{day}\n") for day in DAYS}
    assert (steps[-1].message, written) == ("It is Monday.", "Monday\n")
    assert [step.ask.channel for step in steps if step.ask] == [
        "mcp" if switch == "1" else "elicitation"
    ]
