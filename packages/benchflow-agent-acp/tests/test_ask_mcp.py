"""The portable ask tool: real processes, and its readers against hostile bytes."""

import asyncio
import json
import subprocess
import sys
from importlib.resources import files

import pytest
from benchflow_agent_acp.ask_mcp.joined_process import JoinedProcess, attach_joined
from benchflow_agent_acp.ask_mcp.messages import METHOD, tool_answer, tool_ask, tool_reply
from benchflow_agent_acp.asks import to_ask
from benchflow_agent_acp.builtin import scripted
from benchflow_agent_acp.state import IncomingRequest
from benchflow_contracts import (
    AgentError,
    AgentProtocolError,
    Answer,
    Role,
    UsageError,
)
from hypothesis import given
from hypothesis import strategies as st

PROGRAM = files("benchflow_agent_acp").joinpath("in_sandbox/ask_tool")


@pytest.fixture(autouse=True)
def _place(monkeypatch, tmp_path):
    """The test sandbox moves paths in commands, and not those in a session's messages."""
    monkeypatch.setattr("benchflow_agent_acp.ask_mcp.tool.TARGET", str(tmp_path / "ask-tool"))


def test_an_agent_that_takes_no_tool_servers_cannot_have_it(in_sandbox):
    async def body(sandbox):
        with pytest.raises(AgentError, match="tool servers"):
            await scripted().connect(sandbox, Role(env={"BENCHFLOW_ASK_MCP": "1"}))
        assert all(process.group_is_dead for process in sandbox.processes)

    in_sandbox(body)


def test_the_server_accepts_any_input(tmp_path):
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
        [sys.executable, "-I", str(PROGRAM), "server", "ask_user"],
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
def test_any_parameters_are_read_as_a_question_or_refused(params):
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
def test_an_answer_that_does_not_fit_the_question_is_refused(answer):
    params = {"question": "Which?", "options": ["a", "b"]}
    ask = tool_ask(IncomingRequest("ask-mcp-1", METHOD, params))
    with pytest.raises(UsageError):
        tool_reply(ask, answer)


def line(**fields):
    return json.dumps(fields).encode() + b"\n"


def joined(memory_process, body, partial_line=b""):
    async def main():
        agent, broker = memory_process(), memory_process()
        return await body(JoinedProcess(agent, broker, partial_line=partial_line), agent, broker)

    return asyncio.run(main())


CALL = line(update={"sessionUpdate": "tool_call", "title": "ask_user", "toolCallId": "t"})
QUESTION = line(id=1, params={"question": "Which?"})


def test_a_question_never_splits_a_line_of_the_agent(memory_process):
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

    first, second = joined(memory_process, body, partial_line=b'{"the ')
    assert first == b"end}\n"
    assert b"ask-mcp-1" in second


async def both_are_read(*processes):
    for _ in range(1000):
        if all(process.stdout._stream._waiter for process in processes):
            return
        await asyncio.sleep(0)
    raise AssertionError("nobody reads")


def test_the_tool_call_comes_before_its_question_if_both_arrive_at_once(memory_process):
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


def test_the_agent_continues_after_the_broker_has_ended(memory_process):
    async def body(process, agent, broker):
        await broker.stdout.aclose()
        await agent.raw(b"{}\n")
        assert await process.stdout.read() == b"{}\n"
        await agent.stdout.aclose()
        assert await process.stdout.read() == b""

    joined(memory_process, body)


@pytest.mark.parametrize("bytes_", [b"\xff\n", b"{" * 9 + b"\n", b"x" * 5000, b'{"id": NaN}\n'])
def test_hostile_bytes_of_the_broker_raise_a_typed_error(memory_process, bytes_):
    async def body(process, agent, broker):
        await broker.raw(bytes_)
        with pytest.raises(AgentProtocolError):
            await process.stdout.read()

    joined(memory_process, body)


def test_a_child_attaches_to_both_processes(memory_process):
    class Child:
        def __init__(self):
            self.processes = {"a": memory_process(), "b": memory_process()}

        async def attach(self, process_id):
            return self.processes[process_id]

    async def body(process, agent, broker):
        agent.id, broker.id = "a", "b"
        assert process.id == "a+b"
        child = Child()
        twin = await attach_joined(child, process.id, partial_line=b"")
        await child.processes["b"].raw(QUESTION)
        assert b"ask-mcp-1" in await twin.stdout.read()
        assert await attach_joined(child, "a", partial_line=b"") is child.processes["a"]

    joined(memory_process, body)
