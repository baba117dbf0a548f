"""The portable ask tool as a real process, given to the policy agent."""

import pytest
from benchflow_agent_acp import AcpAgent
from benchflow_agent_acp.logs import read_wire_log
from benchflow_agent_acp.steps import steps_from_wire
from benchflow_agent_policy import policy
from benchflow_contracts import Answer, Door, Role
from scripted_llm import ModelReply, ScriptedLlm, ToolUse

TOOL = "mcp__benchflow__ask_user"


@pytest.fixture(autouse=True)
def _place(monkeypatch, tmp_path):
    """The test sandbox moves paths in commands, and not those in a session's messages."""
    monkeypatch.setattr("benchflow_agent_acp.ask_mcp.tool.TARGET", str(tmp_path / "ask-tool"))


def role_for(llm, switch="1"):
    env = {"OPENAI_BASE_URL": f"{llm.url}/v1", "BENCHFLOW_ASK_MCP": switch}
    return Role(model="m", env=env, timeout_sec=120)


def with_model(sandbox):
    changed = {"doors": (Door(upstream="http://127.0.0.1:9"),), "network": "model-only"}
    sandbox.spec = sandbox.spec.model_copy(update=changed)
    return sandbox


def asking(question):
    def act(request):
        if request.tool_results:
            return ModelReply(text=request.tool_results[-1])
        return ModelReply(tools=(ToolUse(TOOL, question),))

    return act


def play(in_sandbox, question, answer, log_dir=None):
    asks = []

    async def note(ask):
        asks.append(ask)
        return answer(ask)

    async def body(sandbox):
        session = await policy().connect(with_model(sandbox), role_for(llm), log_dir=log_dir)
        session.on_ask_user(note)
        try:
            assert await session.prompt("Go.") == "end_turn"
        finally:
            await session.aclose()
        assert len(sandbox.processes) == 2
        assert all(process.group_is_dead for process in sandbox.processes)
        return session

    with ScriptedLlm(asking(question)) as llm:
        return in_sandbox(body), asks, llm.requests


def test_a_call_of_the_tool_is_an_ask_and_its_answer_the_result(in_sandbox, tmp_path):
    question = {"question": "Which dày?", "options": ["Monday", "Tuesday"]}
    session, asks, requests = play(
        in_sandbox, question, lambda ask: Answer.choose(ask, "Tuesday"), tmp_path / "log"
    )
    (ask,) = asks
    assert (ask.channel, ask.kind, ask.branchable) == ("mcp", "question", True)
    assert ask.questions[0].text == "Which dày?"
    assert not ask.questions[0].allow_custom
    assert requests[1].tool_results == ("The user answered: Tuesday",)
    asking_step, answered = session.steps[:2]
    assert asking_step.ask == ask
    # The tool call of the agent's own is the one that asks.
    assert [call.id for call in asking_step.tool_calls] == [ask.tool_call_id]
    assert answered.answer == Answer(selected={"answer": ("Tuesday",)})
    assert [seen.tool_call_id for seen in answered.observations] == [ask.tool_call_id]
    records = read_wire_log(tmp_path / "log/acp_wire.jsonl")
    assert steps_from_wire(records) == session.steps


@pytest.mark.parametrize(
    ("question", "answer", "result"),
    [
        ({"question": "Where?"}, Answer(text={"answer": "here"}), "The user answered: here"),
        ({"question": "Where?"}, Answer(outcome="declined"), "no answer"),
        ({"question": ""}, None, "cannot be asked"),
        ({"question": "x" * 5000}, None, "too long"),
    ],
)
def test_every_outcome_reaches_the_model(in_sandbox, question, answer, result):
    _, asks, requests = play(in_sandbox, question, lambda _: answer)
    assert result in requests[1].tool_results[0]
    assert len(asks) == (answer is not None)


def test_a_role_without_the_switch_has_no_tool(in_sandbox):
    async def body(sandbox):
        session = await policy().connect(with_model(sandbox), role_for(llm, switch="0"))
        await session.prompt("Go.")
        await session.aclose()
        assert len(sandbox.processes) == 1

    with ScriptedLlm(lambda _: ModelReply(text="Done.")) as llm:
        in_sandbox(body)
    assert TOOL not in llm.requests[0].tools


def test_a_declaration_can_give_the_tool_to_every_role(in_sandbox):
    ask = policy().decl.ask.model_copy(update={"channel": "none", "mcp": True})
    agent = AcpAgent(policy().decl.model_copy(update={"ask": ask}))
    assert agent.capabilities().ask_user

    async def body(sandbox):
        role = role_for(llm)
        role = role.model_copy(update={"env": {"OPENAI_BASE_URL": role.env["OPENAI_BASE_URL"]}})
        session = await agent.connect(with_model(sandbox), role)
        await session.prompt("Go.")
        await session.aclose()

    with ScriptedLlm(lambda _: ModelReply(text="Done.")) as llm:
        in_sandbox(body)
    assert TOOL in llm.requests[0].tools


def test_a_cancelled_turn_leaves_no_pending_question(in_sandbox):
    async def body(sandbox):
        session = await policy().connect(with_model(sandbox), role_for(llm))

        async def cancel(ask):
            await session.cancel()
            return Answer(outcome="cancelled")

        session.on_ask_user(cancel)
        assert await session.prompt("Go.") == "cancelled"

        async def choose(ask):
            return Answer.choose(ask, "a")

        session.on_ask_user(choose)
        assert await session.prompt("Again.") == "end_turn"
        await session.aclose()
        return session

    with ScriptedLlm(asking({"question": "Which?", "options": ["a", "b"]})) as llm:
        session = in_sandbox(body)
    assert session.steps[-1].message == "The user answered: a"
