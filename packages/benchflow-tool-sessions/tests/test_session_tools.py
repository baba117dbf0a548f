"""The tools of a session in a real sandbox: shell, files, and MCP servers."""

import asyncio
from pathlib import Path

import pytest
from benchflow_tool_sessions import SessionLimits, SessionStartError, open_session
from session_parts import config, task_at

_SERVER = """\
import json, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    key, method = message.get("id"), message["method"]
    if method == "initialize":
        print("a banner", flush=True)
        say(id=key, result={"protocolVersion": "2025-06-18", "capabilities": {}})
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"numbers": {"type": "array"}}}
        names = ("add", "draw", "refuse", "shout", "die")
        say(id=key, result={"tools": [{"name": n, "inputSchema": schema} for n in names]})
    elif method == "tools/call":
        name = message["params"]["name"]
        if name == "add":
            text = f"total {sum(message['params']['arguments']['numbers'])}"
            say(id=key, result={"content": [{"type": "text", "text": text}]})
        elif name == "draw":
            image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
            say(id=key, result={"content": [{"type": "text", "text": "see"}, image]})
        elif name == "refuse":
            say(id=key, result={"content": [{"type": "text", "text": "no"}], "isError": True})
        elif name == "shout":
            text = "\\ud800" + "x" * 100_000
            say(id=key, result={"content": [{"type": "text", "text": text}]})
        else:
            sys.exit(1)
"""
_TABLE = (
    "[environment]",
    'mcp_servers = [{name = "calc", command = "python3", args = ["-I", "/opt/calc.py"]}]',
)


def _task_with_server(home: Path) -> Path:
    task = task_at(home, *_TABLE)
    place = task / "environment/files/opt"
    place.mkdir(parents=True)
    (place / "calc.py").write_text(_SERVER)
    return task


def test_the_tools_of_the_task_s_mcp_servers_are_tools_of_the_session(tmp_path: Path) -> None:
    async def check() -> None:
        task = _task_with_server(tmp_path)
        async with open_session(task, config(sandbox="local")) as session:
            tools = {tool.name: tool for tool in await session.tools()}
            assert list(tools)[3:5] == ["mcp__calc__add", "mcp__calc__draw"]
            assert tools["mcp__calc__add"].input_schema["type"] == "object"
            result = await session.call("mcp__calc__add", {"numbers": [3, 4]})
            assert (result.text, result.is_error) == ("total 7", False)
            drawn = await session.call("mcp__calc__draw")
            assert drawn.text == "see\n[image]"
            assert drawn.blocks[1]["mimeType"] == "image/png"
            assert (await session.call("mcp__calc__refuse")).is_error
            loud = await session.call("mcp__calc__shout")
            assert loud.truncated
            assert len(loud.text) < 31_000
            for _ in range(2):
                assert (await session.call("mcp__calc__die")).is_error
            assert not (await session.call("bash", {"command": "true"})).is_error
            outcome = await session.submit()
            assert outcome is not None
            assert outcome.reward == 0.5

    asyncio.run(check())


def test_the_tools_of_mcp_servers_work_in_each_child_of_a_fork(tmp_path: Path) -> None:
    async def check() -> None:
        task, limits = _task_with_server(tmp_path), SessionLimits(sessions=2)
        async with open_session(task, config(sandbox="local"), limits=limits) as session:
            await session.call("mcp__calc__add", {"numbers": [1]})
            for child in await session.fork(2):
                assert "mcp__calc__add" in [tool.name for tool in await child.tools()]
                result = await child.call("mcp__calc__add", {"numbers": [3, 4]})
                assert (result.text, result.is_error) == ("total 7", False)
                outcome = await child.submit()
                assert outcome is not None
                assert outcome.reward == 0.5

    asyncio.run(check())


def test_a_broken_mcp_server_fails_the_start(tmp_path: Path) -> None:
    async def check() -> None:
        task = task_at(tmp_path, *_TABLE)
        with pytest.raises(SessionStartError, match="calc"):
            async with open_session(task, config(sandbox="local")):
                pass

    asyncio.run(check())


def test_files_and_commands_run_as_the_agent_and_large_output_is_cut(tmp_path: Path) -> None:
    async def check() -> None:
        limits = SessionLimits(output_chars=1000)
        async with open_session(
            task_at(tmp_path), config(sandbox="local"), limits=limits
        ) as session:

            async def call(name: str, **arguments: object) -> tuple[str, bool, bool]:
                result = await session.call(name, arguments)
                return result.text, result.is_error, result.truncated

            assert await call("bash", command="id -un") == ("agent\n", False, False)
            text, failed, _ = await call("bash", command="echo one; echo two >&2; exit 3")
            assert (text, failed) == ("one\ntwo\n\n[exit code 3]", True)
            text, _, is_cut = await call("bash", command="head -c 100000 /dev/zero | tr '\\0' x")
            assert is_cut
            assert len(text) < 1100
            text, *_ = await call("bash", command=r"printf 'a\377b'")
            assert text == "a\N{REPLACEMENT CHARACTER}b"
            assert (await call("bash", command="sleep 60", timeout=0.2))[1]
            assert (await call("write_file", path="a/-b", content="ü\n"))[0] == "wrote 3 bytes"
            assert (await call("read_file", path="a/-b"))[0] == "ü\n"
            assert (await call("write_file", path="/etc/passwd", content=""))[1]
            assert (await call("read_file", path="/etc/shadow"))[1]
            assert (await call("read_file", path="/dev/zero"))[1]
            assert (await call("read_file", path="a\0b"))[1]
            await call("bash", command="yes | head -c 100000 > big")
            assert (await call("read_file", path="big"))[2]

    asyncio.run(check())
