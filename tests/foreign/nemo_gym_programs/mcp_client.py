"""The official MCP client, which NeMo Gym's agents use, lists and calls tools of a session."""

import asyncio
import json
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client

URL, HEADERS = sys.argv[1], json.loads(sys.argv[2])


async def main() -> dict[str, object]:
    """Return the names of the tools, and the text of one call."""
    async with (
        streamablehttp_client(URL, headers=HEADERS) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = await session.list_tools()
        result = await session.call_tool("bash", {"command": "pwd"})
        return {
            "tools": [tool.name for tool in tools.tools],
            "text": result.content[0].text,
            "is_error": result.isError,
        }


print(json.dumps(asyncio.run(main())))
