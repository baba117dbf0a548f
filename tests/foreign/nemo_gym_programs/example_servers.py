"""Serve stock resources servers of NeMo Gym until standard input ends; print their addresses."""

import asyncio
import json
import os
import socket
import sys
from importlib.util import find_spec
from typing import Any

os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps({"head_server": {"host": "127.0.0.1", "port": 1}})

import uvicorn
from nemo_gym.server_utils import ServerClient, get_global_config_dict
from resources_servers.example_mcp_weather.app import (
    ExampleMCPWeatherResourcesServer,
)
from resources_servers.example_multi_turn_gymnasium.app import ExampleMultiTurnEnv
from resources_servers.example_session_state_mgmt.app import (
    StatefulCounterResourcesServer,
)
from resources_servers.example_tool_call_multireward.app import (
    ToolCallMultiRewardResourcesServer,
)

HAS_EPISODES = find_spec("environment_servers") is not None
SERVERS: dict[str, Any] = {
    "stateful": StatefulCounterResourcesServer,
    "multireward": ToolCallMultiRewardResourcesServer,
    "gymnasium": ExampleMultiTurnEnv,
    "weather": ExampleMCPWeatherResourcesServer,
}


def make_app(kind: Any, name: str, address: dict[str, Any]) -> Any:
    """Return the application of a server, as NeMo Gym's own start makes it."""
    given = {**address, "entrypoint": "app.py", "domain": "agent", "name": name}
    # Version 0.7.0 has no class of its own for servers with MCP tools.
    given["expose_tools_over_mcp"] = HAS_EPISODES and name == "weather"
    config = kind.model_fields["config"].annotation.model_validate(given)
    client = ServerClient(
        head_server_config=ServerClient.load_head_server_config(),
        global_config_dict=get_global_config_dict(),
    )
    server = kind(config=config, server_client=client)
    app = server.setup_webserver()
    server.setup_exception_middleware(app)
    if HAS_EPISODES:
        from nemo_gym.mcp_auto_exposure import maybe_auto_expose  # noqa: PLC0415

        maybe_auto_expose(server, app)
    return app


async def main() -> None:
    """Serve all of them on one event loop."""
    servers, urls = [], {}
    async with asyncio.TaskGroup() as tasks:
        for name, kind in SERVERS.items():
            listener = socket.socket()
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            address = {"host": "127.0.0.1", "port": listener.getsockname()[1]}
            app = make_app(kind, name, address)
            server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
            servers.append(server)
            tasks.create_task(server.serve([listener]))
            urls[name] = f"http://127.0.0.1:{address['port']}"
        print(json.dumps(urls), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for server in servers:
            server.should_exit = True


asyncio.run(main())
