"""The portable ask tool: real processes, and its readers against hostile bytes."""

import asyncio
import json
import subprocess
import sys
from importlib.resources import files

import pytest
from benchflow_agent_acp import AcpAgent
from benchflow_agent_acp.ask_mcp.form import METHOD, tool_answer, tool_ask, tool_reply
from benchflow_agent_acp.ask_mcp.joined import JoinedProcess, attach_joined
from benchflow_agent_acp.asks import to_ask
from benchflow_agent_acp.builtin import policy, scripted
from benchflow_agent_acp.state import IncomingRequest
from benchflow_agent_acp.steps import steps_from_wire
from benchflow_agent_acp.wirelog import read_wire_log
from benchflow_contracts import (
    AgentError,
    AgentProtocolError,
    Answer,
    ModelEndpoint,
    Role,
    UsageError,
)
from hypothesis import given
from hypothesis import strategies as st
from scripted_llm import ModelReply, ScriptedLlm, ToolUse

INSIDE = files("benchflow_agent_acp").joinpath("ask_mcp/inside")
TOOL = "mcp__benchflow__ask_user"


@pytest.fixture(autouse=True)
def _place(monkeypatch, tmp_path):
    """The test sandbox moves paths in commands, and not those in a session's messages."""
    monkeypatch.setattr("benchflow_agent_acp.ask_mcp.tool.TARGET", str(tmp_path / "ask-tool"))


def role_for(llm, switch="1"):
    env = {"OPENAI_BASE_URL": f"{llm.url}/v1", "BENCHFLOW_ASK_MCP": switch}
    return Role(model="m", env=env, timeout_sec=120)


def with_model(sandbox):
    changed = {"model": ModelEndpoint(upstream="http://127.0.0.1:9"), "network": "model-only"}
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


def test_an_agent_that_takes_no_tool_servers_cannot_have_it(in_sandbox):
    async def body(sandbox):
        with pytest.raises(AgentError, match="tool servers"):
            await scripted().connect(sandbox, Role(env={"BENCHFLOW_ASK_MCP": "1"}))
        assert all(process.group_is_dead for process in sandbox.processes)

    in_sandbox(body)


def test_a_cancelled_turn_leaves_no_question_behind(in_sandbox):
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


def test_the_server_bears_with_any_client(tmp_path):
    """It answers what it knows, refuses the rest, and ends with its input."""
    lines = [
        b"no json",
        b'{"id": 1, "method": "initialize", "params": []}',
        b'{"id": 2, "method": "ping"}',
        b'{"id": 3, "method": "tools/list"}',
        b'{"id": 4, "method": "tools/call", "params": {"name": "other"}}',
        b'{"id": 5, "method": "tools/call", "params": {"name": "ask_user", "arguments": [1]}}',
        b'{"method": "notifications/cancelled", "params": {"requestId": 5}}',
        b"[" * 5000,
        b"\xff\xfe",
    ]
    done = subprocess.run(
        [sys.executable, "-I", str(INSIDE), "server", "ask_user"],
        env={"BENCHFLOW_ASK_SOCKET": "nobody-listens"},
        input=b"\n".join(lines) + b"\n",
        capture_output=True,
        timeout=60,
        check=True,
    )
    replies = {m["id"]: m for m in map(json.loads, done.stdout.splitlines())}
    assert replies[1]["result"]["serverInfo"]["name"] == "benchflow"
    assert [tool["name"] for tool in replies[3]["result"]["tools"]] == ["ask_user"]
    assert replies[4]["error"]["code"] == -32601
    assert "cannot be reached" in replies[5]["result"]["content"][0]["text"]


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.text() | st.lists(st.text())))
def test_any_parameters_are_a_question_or_none(params):
    for given_params in (params, {**params, "question": "Which?", "options": ["a", "b", "a"]}):
        ask = to_ask(IncomingRequest("ask-mcp-1", METHOD, given_params))
        if ask is not None:
            options = ask.questions[0].options
            answer = Answer.choose(ask, options[0].id) if options else Answer(text={"answer": "x"})
            assert tool_answer(ask, tool_reply(ask, answer)) == answer


@pytest.mark.parametrize(
    "answer",
    [
        Answer(selected={"answer": ("c",)}),
        Answer(selected={"answer": ("a", "b")}),
        Answer(text={"answer": "x"}),
        Answer(),
    ],
)
def test_an_answer_to_what_was_not_asked_is_refused(answer):
    params = {"question": "Which?", "options": ["a", "b"]}
    ask = tool_ask(IncomingRequest("ask-mcp-1", METHOD, params))
    with pytest.raises(UsageError):
        tool_reply(ask, answer)


def line(**fields):
    return json.dumps(fields).encode() + b"\n"


def joined(memory_process, body, began=b""):
    async def main():
        agent, broker = memory_process(), memory_process()
        return await body(JoinedProcess(agent, broker, began=began), agent, broker)

    return asyncio.run(main())


CALL = line(update={"sessionUpdate": "tool_call", "title": "ask_user", "toolCallId": "t"})
QUESTION = line(id=1, params={"question": "Which?"})


def test_a_question_never_cuts_a_line_of_the_agent_in_two(memory_process):
    async def body(process, agent, broker):
        await broker.raw(QUESTION)
        await agent.raw(CALL[:30])
        seen = await process.stdout.read()
        assert process.stdout.waiting() == 0
        await agent.raw(CALL[30:])
        while seen.count(b"\n") < 2:
            seen += await process.stdout.read()
        assert process.stdout.waiting() == 0
        return seen.splitlines()

    first, second = joined(memory_process, body)
    assert first + b"\n" == CALL
    assert json.loads(second) == {
        "jsonrpc": "2.0",
        "id": "ask-mcp-1",
        "method": METHOD,
        "params": {"question": "Which?", "toolCallId": "t"},
    }


def test_a_line_that_began_before_the_fork_is_ended_first(memory_process):
    async def body(process, agent, broker):
        await broker.raw(QUESTION)
        await agent.raw(b"end}\n")
        return await process.stdout.read(), await process.stdout.read()

    first, second = joined(memory_process, body, began=b'{"the ')
    assert first == b"end}\n"
    assert b"ask-mcp-1" in second


async def both_are_read(*processes):
    for _ in range(1000):
        if all(process.stdout._stream._waiter for process in processes):
            return
        await asyncio.sleep(0)
    raise AssertionError("nobody reads")


def test_what_was_said_at_once_is_told_in_the_order_of_its_causes(memory_process):
    """The call that asks is known, also when both are read in the same moment."""

    async def body(process, agent, broker):
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(process.stdout.read())
            await both_are_read(agent, broker)
            await broker.raw(line(id=0) + QUESTION)
            await agent.raw(CALL)
        assert reading.result() == CALL
        assert process.stdout.waiting()
        return json.loads(await process.stdout.read())

    assert joined(memory_process, body)["params"]["toolCallId"] == "t"


def test_a_cancelled_read_loses_nothing(memory_process):
    async def body(process, agent, broker):
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(process.stdout.read())
            await both_are_read(agent, broker)
            await agent.raw(CALL)
            await broker.raw(QUESTION)
            await asyncio.sleep(0)
            reading.cancel()
        seen = b""
        while seen.count(b"\n") < 2:
            seen += await process.stdout.read()
        assert seen.startswith(CALL)
        await broker.stdout.aclose()
        await agent.stdout.aclose()
        assert await process.stdout.read() == b""

    joined(memory_process, body)


def test_only_replies_to_the_tool_go_to_the_broker(memory_process):
    async def body(process, agent, broker):
        reply = b'{"jsonrpc":"2.0","id":"ask-mcp-1","result":{}}\n'
        other = b'{"jsonrpc":"2.0","id":7,"method":"m","params":"\\"id\\":\\"ask-mcp-1\\""}\n'
        await process.stdin.write(reply)
        await process.stdin.write(other)
        assert (await broker.hear())["id"] == "ask-mcp-1"
        assert (await agent.hear())["id"] == 7

    joined(memory_process, body)


def test_the_agent_lives_on_when_the_broker_has_ended(memory_process):
    async def body(process, agent, broker):
        await broker.stdout.aclose()
        await agent.raw(b"{}\n")
        assert await process.stdout.read() == b"{}\n"
        await agent.stdout.aclose()
        assert await process.stdout.read() == b""

    joined(memory_process, body)


@pytest.mark.parametrize("bytes_", [b"\xff\n", b"{" * 9 + b"\n", b"x" * 5000, b'{"id": NaN}\n'])
def test_hostile_bytes_of_the_broker_are_a_typed_error(memory_process, bytes_):
    async def body(process, agent, broker):
        await broker.raw(bytes_)
        with pytest.raises(AgentProtocolError):
            await process.stdout.read()

    joined(memory_process, body)


def test_both_processes_are_found_again_in_a_child(memory_process):
    class Child:
        def __init__(self):
            self.processes = {"a": memory_process(), "b": memory_process()}

        async def attach(self, process_id):
            return self.processes[process_id]

    async def body(process, agent, broker):
        agent.id, broker.id = "a", "b"
        assert process.id == "a+b"
        child = Child()
        twin = await attach_joined(child, process.id, began=b"")
        await child.processes["b"].raw(QUESTION)
        assert b"ask-mcp-1" in await twin.stdout.read()
        assert await attach_joined(child, "a", began=b"") is child.processes["a"]

    joined(memory_process, body)
