"""File and terminal requests of an agent, served in the sandbox."""

import json
import os
import sys

import pytest
from benchflow_agent_acp.agent import AcpAgent
from benchflow_agent_acp.builtin import shipped_declaration
from benchflow_agent_acp.declaration import ClientSection
from benchflow_contracts import Role

AGENT = """
import json, sys
count = 0
def out(**m): print(json.dumps({"jsonrpc": "2.0", **m}), flush=True)
def hear(): return json.loads(sys.stdin.readline())
def call(method, **params):
    global count
    count += 1
    out(id=f"c{count}", method=method, params={"sessionId": "s", **params})
    reply = hear()
    return reply["result"] if "result" in reply else reply["error"]
m = hear(); caps = m["params"]["clientCapabilities"]; out(id=m["id"], result={"protocolVersion": 1})
m = hear(); out(id=m["id"], result={"sessionId": "s"})
prompt = hear()
log = []
exec(open(sys.argv[1]).read())
text = {"type": "text", "text": json.dumps(log)}
out(method="session/update", params={"sessionId": "s",
    "update": {"sessionUpdate": "agent_message_chunk", "content": text}})
out(id=prompt["id"], result={"stopReason": "end_turn"})
hear()
"""


@pytest.fixture
def run_calls(in_sandbox, tmp_path):
    def run(calls, **offered):
        (tmp_path / "agent.py").write_text(AGENT)
        (tmp_path / "calls.py").write_text(calls)
        decl = shipped_declaration("scripted")
        args = (str(tmp_path / "agent.py"), str(tmp_path / "calls.py"))
        launch = decl.launch.model_copy(update={"cmd": sys.executable, "args": args})
        client = ClientSection(**{"fs": True, "terminal": True, **offered})
        agent = AcpAgent(decl.model_copy(update={"launch": launch, "client": client}))

        async def main(sandbox):
            session = await agent.connect(sandbox, Role())
            await session.prompt("go")
            await session.aclose()
            return json.loads(session.steps[-1].message)

        return in_sandbox(main)

    return run


def test_nothing_is_offered_or_served_by_default(run_calls):
    log = run_calls(
        "log.append([caps['fs'], caps['terminal']])\n"
        "log.append(call('fs/read_text_file', path='/etc/hostname')['code'])\n"
        "log.append(call('terminal/create', command='id')['code'])",
        fs=False,
        terminal=False,
    )
    assert log == [[{"readTextFile": False, "writeTextFile": False}, False], -32601, -32601]


def test_files_are_written_and_read_inside_the_sandbox(run_calls, tmp_path):
    path = f"{tmp_path}/workspace/deep/x.txt"
    log = run_calls(
        f"log.append(call('fs/write_text_file', path={path!r}, content='a\\nb\\nc\\n'))\n"
        f"log.append(call('fs/read_text_file', path={path!r})['content'])\n"
        f"log.append(call('fs/read_text_file', path={path!r}, line=2, limit=1)['content'])"
    )
    assert log == [{}, "a\nb\nc\n", "b\n"]


def test_bad_file_requests_are_refused_one_by_one(run_calls, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * (1 << 20) + b"y")
    log = run_calls(
        "log.append(call('fs/read_text_file', path='relative')['code'])\n"
        "log.append(call('fs/read_text_file', path='/a\\0b')['code'])\n"
        "log.append(call('fs/read_text_file', path='/no/such/file')['code'])\n"
        "log.append(call('fs/read_text_file', path='/dev/zero')['code'])\n"
        f"log.append(call('fs/read_text_file', path={str(tmp_path / 'big')!r})['code'])\n"
        "log.append(call('fs/read_text_file')['code'])\n"
        "log.append(call('fs/write_text_file', path='/tmp/x', content='x' * 1100000)['code'])"
    )
    assert log == [-32602] * 7


def test_a_terminal_runs_returns_its_output_and_is_released(run_calls):
    log = run_calls(
        "t = call('terminal/create', command='echo out; echo err >&2; exit 3')['terminalId']\n"
        "log.append(call('terminal/wait_for_exit', terminalId=t))\n"
        "got = call('terminal/output', terminalId=t)\n"
        "log.append([sorted(got['output'].split()), got['exitStatus'], got['truncated']])\n"
        "log.append(call('terminal/release', terminalId=t))\n"
        "log.append(call('terminal/output', terminalId=t)['code'])"
    )
    assert log == [{"exitCode": 3}, [["err", "out"], {"exitCode": 3}, False], {}, -32602]


def test_a_terminal_keeps_only_the_end_of_its_output(run_calls):
    log = run_calls(
        "t = call('terminal/create', command='printf', args=['aaaabbbb'], outputByteLimit=4)\n"
        "call('terminal/wait_for_exit', terminalId=t['terminalId'])\n"
        "got = call('terminal/output', terminalId=t['terminalId'])\n"
        "log.append([got['output'], got['truncated']])"
    )
    assert log == [["bbbb", True]]


def test_a_terminal_can_be_killed(run_calls):
    log = run_calls(
        "t = call('terminal/create', command='sleep', args=['60'])['terminalId']\n"
        "log.append(call('terminal/kill', terminalId=t))\n"
        "log.append(call('terminal/wait_for_exit', terminalId=t))"
    )
    assert log == [{}, {"exitCode": 137}]


def test_an_unreleased_terminal_ends_with_the_turn(in_sandbox, run_calls, tmp_path):
    log = run_calls(
        f"t = call('terminal/create', command='echo $$ > {tmp_path}/pid; exec sleep 60')\n"
        "log.append(list(t))\n"
        "import time\nfrom pathlib import Path\n"
        f"pid = Path('{tmp_path}/pid')\n"
        "while not (pid.exists() and pid.read_text()): time.sleep(0.01)"
    )
    assert log == [["terminalId"]]
    pid = (tmp_path / "pid").read_text().strip()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def test_there_are_never_more_than_sixteen_terminals(run_calls):
    log = run_calls(
        "for _ in range(17): got = call('terminal/create', command='sleep', args=['60'])\n"
        "log.append(got['code'])"
    )
    assert log == [-32602]
