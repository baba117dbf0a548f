"""Agents that break the protocol: the session ends typed, and their group is dead."""

import asyncio
import json
import resource
import sys

import pytest
from benchflow_agent_acp.agent import AcpAgent
from benchflow_agent_acp.builtin import shipped_declaration
from benchflow_agent_acp.limits import WireLimits
from benchflow_contracts import AgentError, AgentProtocolError, AgentTimeoutError, Answer, Role

# The preamble speaks properly; `turn` is what the agent does instead of a turn.
AGENT = """
import json, os, sys, time
def say(**m): os.write(1, json.dumps({{"jsonrpc": "2.0", **m}}).encode() + b"\\n")
def raw(b):
    while b: b = b[os.write(1, b):]
def update(**u): say(method="session/update", params={{"sessionId": "s", "update": u}})
def message(text):
    block = {{"type": "text", "text": text}}
    update(sessionUpdate="agent_message_chunk", content=block)
def hear(): return json.loads(sys.stdin.readline())
def turn(request):
{turn}
m = hear(); say(id=m["id"], result={{"protocolVersion": 1}})
m = hear(); say(id=m["id"], result={{"sessionId": "s"}})
turn(hear())
"""

LIMITS = WireLimits(turn_bytes=6 * 1024 * 1024, noise_lines=20, steps=50)


@pytest.fixture
def run_hostile(in_sandbox, tmp_path):
    def run(turn, *, expect, limits=LIMITS, match=None, **role_fields):
        body = "\n".join("    " + line for line in turn.strip().splitlines())
        program = tmp_path / "hostile.py"
        program.write_text(AGENT.format(turn=body))
        decl = shipped_declaration("scripted")
        launch = decl.launch.model_copy(update={"cmd": sys.executable, "args": (str(program),)})
        agent = AcpAgent(decl.model_copy(update={"launch": launch}), limits=limits)

        async def main(sandbox):
            session = await agent.connect(sandbox, Role(**role_fields), log_dir=tmp_path / "log")
            session.on_ask_user(choose_first)
            try:
                if expect is None:
                    assert await session.prompt("go") == "end_turn"
                else:
                    with pytest.raises(expect, match=match):
                        await session.prompt("go")
                    assert sandbox.processes[-1].group_is_dead
                    with pytest.raises(AgentError):
                        await session.prompt("again")
            finally:
                await session.aclose()
            assert sandbox.processes[-1].group_is_dead
            return session

        return in_sandbox(main)

    return run


async def choose_first(ask):
    return Answer.choose(ask, ask.questions[0].options[0].id)


TOOL_FLOOD = """
tool = dict(sessionUpdate="tool_call", title="t", status="completed")
for n in range(500): update(toolCallId=str(n), **tool)
"""
END = 'say(id=request["id"], result={"stopReason": "end_turn"})'


@pytest.mark.parametrize(
    ("turn", "match"),
    [
        ("raw(b'{\"a\": \"' + b'x' * (64 << 20))", "line of more than"),
        ("raw(b'[' * 10 + b'\\n')\nraw(b'{\"a\":' * 2000 + b'\\n')", "deeper than"),
        ('raw(b\'{"jsonrpc": "2.0", "method": NaN}\\n\')', "broken message"),
        ("raw(b'{oh no\\n')", "broken message"),
        ('raw(b\'{"jsonrpc": "2.0"}\\n\')', "not a JSON-RPC message"),
        ("raw(b'banner\\n' * 30)", "not messages"),
        ('say(id=[1], method="session/request_permission", params={})', "request id"),
        ('say(id="x" * 1000, method="x", params={})', "request id"),
        ("for n in range(500): say(id=n, method='no/such')", "requests open"),
        ('say(id=request["id"], result={"stopReason": "bored"})', "stop reason"),
        ('say(id=request["id"], result=7)', "stop reason"),
        ("while True: message('x' * 1000)", "more than 6291456 bytes"),
        (
            TOOL_FLOOD,
            "more than 50 steps",
        ),
    ],
    ids=lambda value: value[:40] if len(value) > 40 else value,
)
def test_an_exceeded_limit_ends_the_session_immediately(run_hostile, turn, match):
    run_hostile(turn, expect=AgentProtocolError, match=match)


def test_memory_stays_bounded_whatever_the_agent_sends(run_hostile):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_hostile("raw(b'{\"a\": \"' + b'x' * (256 << 20))", expect=AgentProtocolError)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 64 * 1024  # KiB


def test_an_agent_that_never_answers_is_silent(run_hostile, monkeypatch):
    monkeypatch.setattr("benchflow_agent_acp.session.CANCEL_GRACE_SEC", 0.2)
    run_hostile("time.sleep(60)", expect=AgentTimeoutError, match="silent", idle_timeout_sec=0.2)


def test_an_agent_that_does_not_read_its_input_is_silent(run_hostile, monkeypatch):
    monkeypatch.setattr("benchflow_agent_acp.session.CANCEL_GRACE_SEC", 0.2)
    # Each reply fills its pipe a little more, until ours would block.
    turn = """
for n in range(60): say(id=n, method="session/update" + "x" * 60)
time.sleep(60)
"""
    run_hostile(turn, expect=AgentTimeoutError, match="silent", idle_timeout_sec=0.5)


def test_an_agent_that_exits_in_its_turn_is_reported_with_its_stderr(run_hostile):
    turn = "message('oh'); sys.stderr.write('out of cheese\\n'); sys.exit(9)"
    session = run_hostile(turn, expect=AgentError, match="exit code 9.*\\n.*out of cheese")
    assert session.steps[-1].message == "oh"
    assert session.steps[-1].meta["incomplete"]


def test_a_grandchild_with_open_pipes_does_not_block_the_runner(run_hostile):
    turn = """
import subprocess
subprocess.Popen(["sleep", "3"], start_new_session=True, stdout=subprocess.DEVNULL)
sys.stderr.write("gone\\n"); sys.exit(4)
"""
    run_hostile(turn, expect=AgentError, match=r"the end of its stderr:\ngone")


def test_an_agent_that_closes_its_output_and_stays_is_killed(run_hostile):
    run_hostile("os.close(1); time.sleep(60)", expect=AgentError, match="closed its output")


def test_children_of_the_agent_end_with_it(run_hostile):
    turn = "import subprocess; subprocess.Popen(['sleep', '60'])\nraw(b'{')\nraw(b'\\n')"
    run_hostile(turn, expect=AgentProtocolError)


def test_late_unknown_and_repeated_responses_are_only_counted(run_hostile, tmp_path):
    turn = f"""
say(id=1, result={{"protocolVersion": 1}})
say(id=777, result={{}})
say(id="x", result={{}})
say(id=None, error={{"code": -1, "message": "?"}})
message("fine")
{END}
{END}
"""
    session = run_hostile(turn, expect=None)
    assert session._connection.state.strays >= 4
    assert session.steps[-1].message == "fine"


def test_a_few_lines_of_noise_are_logged_and_skipped(run_hostile, tmp_path):
    run_hostile(f"raw(b'Welcome!\\n\\n[info] x\\n')\n{END}", expect=None)
    lines = (tmp_path / "log/acp_wire.jsonl").read_text().splitlines()
    noise = [json.loads(line)["msg"]["text"] for line in lines if '"noise"' in line]
    assert noise == ["Welcome!", "[info] x"]


def test_unknown_requests_are_refused_and_the_turn_continues(run_hostile):
    turn = f"""
say(id="q", method="terminal/create", params={{"sessionId": "s", "command": "id"}})
message(str(hear()["error"]["code"]))
say(id="r", method="fs/read_text_file", params={{"sessionId": "s", "path": "/etc/passwd"}})
message(str(hear()["error"]["code"]))
{END}
"""
    assert run_hostile(turn, expect=None).steps[-1].message == "-32601-32601"


def test_a_repeated_request_id_is_answered_once(run_hostile):
    turn = f"""
ask = dict(sessionId="s", toolCall={{"toolCallId": "t"}}, options=[
    {{"optionId": "a", "name": "A", "kind": "allow_once"}}])
twin = json.dumps(dict(jsonrpc="2.0", id="q", method="session/request_permission", params=ask))
raw((twin + "\\n" + twin + "\\n").encode())
message(hear()["result"]["outcome"]["optionId"])
{END}
"""
    session = run_hostile(turn, expect=None)
    assert session.steps[-1].message == "a"
    assert sum(step.ask is not None for step in session.steps) == 1


def test_malformed_updates_are_counted_in_the_step(run_hostile):
    turn = f"""
update(sessionUpdate="no_such_update")
update(sessionUpdate="agent_message_chunk", content="no block")
say(method="session/update", params=[1, 2])
message("fine")
{END}
"""
    step = run_hostile(turn, expect=None).steps[-1]
    assert step.meta["ignored_updates"] == 3
    assert step.message == "fine"


def test_a_form_without_a_question_is_refused(run_hostile):
    turn = f"""
say(id="q", method="elicitation/create", params={{"sessionId": "s", "mode": "url",
    "message": "m", "elicitationId": "e", "url": "http://192.0.2.1/"}})
message(str(hear()["error"]["code"]))
{END}
"""
    assert run_hostile(turn, expect=None).steps[-1].message == "-32602"


def test_a_question_between_turns_is_asked_in_the_next_turn(in_sandbox, tmp_path, run_hostile):
    turn = f"""
{END}
ask = dict(sessionId="s", toolCall={{"toolCallId": "t"}}, options=[
    {{"optionId": "a", "name": "A", "kind": "allow_once"}}])
say(id="q", method="session/request_permission", params=ask)
seen = [hear(), hear()]
prompt = next(m for m in seen if m.get("method") == "session/prompt")
message("answered" if any(m.get("id") == "q" for m in seen) else "lost")
say(id=prompt["id"], result={{"stopReason": "end_turn"}})
"""
    body = "\n".join("    " + line for line in turn.strip().splitlines())
    program = tmp_path / "idle.py"
    program.write_text(AGENT.format(turn=body))
    decl = shipped_declaration("scripted")
    launch = decl.launch.model_copy(update={"cmd": sys.executable, "args": (str(program),)})
    agent = AcpAgent(decl.model_copy(update={"launch": launch}))

    async def main(sandbox):
        session = await agent.connect(sandbox, Role())
        session.on_ask_user(choose_first)
        await session.prompt("one")
        assert await session.prompt("two") == "end_turn"
        await session.aclose()
        return session

    assert in_sandbox(main).steps[-1].message == "answered"


def test_the_wire_log_and_stderr_have_limits_and_note_the_rest(run_hostile, tmp_path):
    limits = WireLimits(log_bytes=2000, log_stderr_bytes=100)
    turn = f"""
sys.stderr.write("e" * 5000); sys.stderr.flush()
for _ in range(50): message("x" * 100)
time.sleep(0.2)
{END}
"""
    run_hostile(turn, expect=None, limits=limits)
    wire = tmp_path / "log/acp_wire.jsonl"
    assert wire.stat().st_size < 2100
    assert json.loads(wire.read_text().splitlines()[-1])["dropped"] > 10
    assert "4900 more bytes were dropped" in (tmp_path / "log/stderr.txt").read_text()


def test_a_cancelled_prompt_leaves_a_closable_session(run_hostile, in_sandbox, tmp_path):
    program = tmp_path / "slow.py"
    program.write_text(AGENT.format(turn="    message('x'); time.sleep(60)"))
    decl = shipped_declaration("scripted")
    launch = decl.launch.model_copy(update={"cmd": sys.executable, "args": (str(program),)})
    agent = AcpAgent(decl.model_copy(update={"launch": launch}))

    async def main(sandbox):
        session = await agent.connect(sandbox, Role())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await session.prompt("go")
        await session.aclose()
        await session.aclose()
        assert sandbox.processes[-1].group_is_dead
        return session

    assert in_sandbox(main).steps[-1].message == "x"
