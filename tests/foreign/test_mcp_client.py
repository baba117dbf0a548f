"""The tools of a world outside the sandbox, played by the published client of MCP."""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import judge_package
import pytest
from benchflow_contracts import ProvisionContext, SandboxSpec
from benchflow_env_outside import ImageBlock, OutsideEnvironment, WorldAnswer, WorldTool
from benchflow_sandbox_core.relay.server import Relay, RelayUpstream
from benchflow_testing.fakes import FakeSandboxProvider

pytestmark = pytest.mark.foreign

PLAYER = """
import asyncio, json, sys
import mcp

async def play(client):
    tools = [tool.name for tool in (await client.list_tools()).tools]
    said = []
    for _ in range(3):
        result = await client.call_tool("look", {"at": "x" * 9000})
        failed = result.is_error if hasattr(result, "is_error") else result.isError
        said.append([failed, [block.type for block in result.content], result.content[0].text])
    print(json.dumps({"tools": tools, "said": said}))

async def main():
    if hasattr(mcp, "Client"):
        async with mcp.Client(sys.argv[1]) as client:
            await play(client)
        return
    from mcp.client.streamable_http import streamablehttp_client
    async with streamablehttp_client(sys.argv[1]) as (reads, writes, _):
        async with mcp.ClientSession(reads, writes) as session:
            await session.initialize()
            await play(session)

asyncio.run(main())
"""


class Room:
    """Shows a picture; the second look ends the episode."""

    def __init__(self) -> None:
        self.looks = 0

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        del task, seed
        return WorldAnswer("Look.")

    async def tools(self) -> Sequence[WorldTool]:
        return [WorldTool("look", "See the room.", {"type": "object"})]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        assert (name, len(arguments["at"])) == ("look", 9000)
        self.looks += 1
        picture = ImageBlock("aGk=")
        return WorldAnswer([f"look {self.looks}", picture], reward=1, finished=self.looks == 2)

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["1.30.0", "2.3.0"])
def test_the_published_client_plays_through_a_door(version: str) -> None:
    python = judge_package.install_once(f"mcp=={version}")

    async def play() -> dict[str, Any]:
        world = OutsideEnvironment("room", Room, {})
        (door,) = await world.open_doors()
        sandbox = await FakeSandboxProvider().create(SandboxSpec())
        await world.provision(ProvisionContext(sandbox=sandbox, task_id="t"))
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        relay = await Relay.start(listener, RelayUpstream.of(door))
        try:
            url = f"http://127.0.0.1:{port}/mcp"
            program = await asyncio.create_subprocess_exec(
                python, "-c", PLAYER, url, stdout=-1, stderr=-1
            )
            out, errors = await program.communicate()
            assert program.returncode == 0, errors.decode()
            assert [event.value for event in world.reward_events()] == [1, 1]
            found: dict[str, Any] = json.loads(out)
            return found
        finally:
            await relay.aclose()
            await world.teardown()

    found = asyncio.run(play())
    assert found["tools"] == ["look"]
    assert found["said"][0] == [False, ["text", "image"], "look 1"]
    assert found["said"][1][2] == "look 2"
    assert found["said"][2][0] is True
