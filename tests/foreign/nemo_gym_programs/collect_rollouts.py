"""NeMo Gym's collector, head server and agents play rows against a resources server.

Arguments: the configuration of the servers, the rows, the output, the number of repetitions, and
the script of the model: for each text of an input the turns of the model. A turn is a text, or the
name and the arguments of a tool. After the last one the model says "done".
"""

import asyncio
import json
import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CONFIG, ROWS, OUTPUT, REPEATS, SCRIPT = (
    json.loads(sys.argv[1]),
    Path(sys.argv[2]),
    Path(sys.argv[3]),
    int(sys.argv[4]),
    json.loads(sys.argv[5]),
)


def listen() -> socket.socket:
    """Return a listener on a free port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


HAS_EPISODES = find_spec("environment_servers") is not None
"""Whether this version reaches an agent by an environment server: 0.7.0 does, 0.4.0 does not."""
LISTENERS = {name: listen() for name in ("agent", "model", "episodes")}
with listen() as free:
    HEAD_PORT = free.getsockname()[1]
ADDRESSES = {
    name: {"host": "127.0.0.1", "port": listener.getsockname()[1]}
    for name, listener in LISTENERS.items()
}
CONFIG["policy_model"] = {"responses_api_models": {"scripted": ADDRESSES["model"]}}
AGENT_NAME = next(name for name, server in CONFIG.items() if "responses_api_agents" in server)
AGENTS = CONFIG[AGENT_NAME]["responses_api_agents"]
STOCK = AGENTS.get("simple_agent") or AGENTS.get("gymnasium_agent")
if STOCK is not None:
    STOCK |= ADDRESSES["agent"]
RELAY = {
    **ADDRESSES["episodes"],
    "entrypoint": "app.py",
    "agent_server": {"type": "responses_api_agents", "name": AGENT_NAME},
}
if HAS_EPISODES:
    CONFIG["episodes"] = {"environment_servers": {"legacy_agent": RELAY}}
CONFIG["head_server"] = {"host": "127.0.0.1", "port": HEAD_PORT}
# A server of NeMo Gym gets its configuration from this variable.
os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(CONFIG)

import uvicorn  # noqa: E402
from fastapi import Body  # noqa: E402
from nemo_gym.base_responses_api_model import (  # noqa: E402
    BaseResponsesAPIModelConfig,
    SimpleResponsesAPIModel,
)
from nemo_gym.openai_utils import (  # noqa: E402
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.rollout_collection import (  # noqa: E402
    RolloutCollectionConfig,
    RolloutCollectionHelper,
)
from nemo_gym.server_utils import HeadServer, ServerClient, get_global_config_dict  # noqa: E402
from responses_api_agents.gymnasium_agent.app import (  # noqa: E402
    GymnasiumAgent,
    GymnasiumAgentConfig,
)
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig  # noqa: E402


class ScriptedModel(SimpleResponsesAPIModel):
    """A model server that answers by the script of the task that the input names."""

    config: BaseResponsesAPIModelConfig

    async def chat_completions(self, body: Any = Body()) -> Any:  # noqa: B008
        raise NotImplementedError

    async def responses(
        self,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),  # noqa: B008
    ) -> NeMoGymResponse:
        items = [item.model_dump() for item in body.input]
        text = json.dumps(items, default=str)
        turns = next(turns for part, turns in SCRIPT.items() if part in text)
        turn = sum(item.get("role") == "assistant" for item in items)
        turn += sum(item["type"] == "function_call" for item in items)
        said = turns[turn] if turn < len(turns) else "done"
        output: dict[str, Any]
        if not isinstance(said, str):
            name, arguments = said
            output = {
                "type": "function_call",
                "call_id": f"call-{turn}",
                "name": name,
                "arguments": json.dumps(arguments),
            }
        else:
            output = {
                "type": "message",
                "id": "m",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": said, "annotations": []}],
            }
        return NeMoGymResponse.model_validate(
            {
                "id": f"r-{turn}",
                "created_at": 0,
                "model": "scripted",
                "object": "response",
                "output": [output],
                "parallel_tool_calls": False,
                "tool_choice": "auto",
                "tools": [],
            }
        )


def client() -> ServerClient:
    return ServerClient(
        head_server_config=ServerClient.load_head_server_config(),
        global_config_dict=get_global_config_dict(),
    )


def apps() -> dict[str, Any]:
    """Return the applications that this process serves, by listener."""
    model = ScriptedModel(
        config=BaseResponsesAPIModelConfig(
            **ADDRESSES["model"], entrypoint="app.py", name="policy_model"
        ),
        server_client=client(),
    )
    served = {"model": model.setup_webserver()}
    if STOCK is not None:
        is_simple = "simple_agent" in AGENTS
        agent, settings = (
            (SimpleAgent, SimpleAgentConfig)
            if is_simple
            else (GymnasiumAgent, GymnasiumAgentConfig)
        )
        config = settings(**STOCK, name=AGENT_NAME)
        served["agent"] = agent(config=config, server_client=client()).setup_webserver()
    if HAS_EPISODES:
        from environment_servers.legacy_agent.app import (  # noqa: PLC0415
            LegacyAgentEnvironmentServer,
            LegacyAgentEnvironmentServerConfig,
        )

        relay = LegacyAgentEnvironmentServerConfig(**RELAY, name="episodes")
        server = LegacyAgentEnvironmentServer(config=relay, server_client=client())
        served["episodes"] = server.setup_webserver()
    return served


async def main() -> list[dict[str, Any]]:
    """Serve, collect, and return the results."""
    HeadServer.run_webserver()
    servers = []
    async with asyncio.TaskGroup() as tasks:
        for name, app in apps().items():
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
            servers.append(server)
            tasks.create_task(server.serve([LISTENERS[name]]))
        while not all(server.started for server in servers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            return await RolloutCollectionHelper().run_from_config(
                RolloutCollectionConfig(
                    agent_name=AGENT_NAME,
                    input_jsonl_fpath=str(ROWS),
                    output_jsonl_fpath=str(OUTPUT),
                    num_repeats=REPEATS,
                    upload_rollouts_to_wandb=False,
                )
            )
        finally:
            for server in servers:
                server.should_exit = True


print(json.dumps(asyncio.run(main())), flush=True)
os._exit(0)
