"""Environment servers of NeMo Gym 0.7 run one episode with each kind of agent.

Arguments: the URL of a resources server whose sandbox an agent borrows, the URL of one with tools,
the rows of both, and the command that the agents run. The output has both episode responses, and
whether our server keeps the contract of sessions.
"""

import asyncio
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

INSIDE, OUTSIDE = sys.argv[1:3]
INSIDE_ROW, OUTSIDE_ROW = (json.loads(each) for each in sys.argv[3:5])
COMMAND = sys.argv[5]


def listen() -> socket.socket:
    """Return a listener on a free port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


NAMES = ("borrower", "caller", "model", "inside", "outside")
LISTENERS = {name: listen() for name in NAMES}
AT = {
    name: {"host": "127.0.0.1", "port": each.getsockname()[1], "entrypoint": "app.py"}
    for name, each in LISTENERS.items()
}
LIMITS = {"default_episode_timeout_seconds": 120, "cleanup_timeout_seconds": 30}


def resources(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    at = {"host": parts.hostname, "port": parts.port, "domain": "agent"}
    return {"resources_servers": {"benchflow": {**at, "verified": False}}}


def ref(kind: str, name: str) -> dict[str, str]:
    return {"type": kind, "name": name}


CALLER = {
    **AT["caller"],
    "resources_server": ref("resources_servers", "tools"),
    "model_server": ref("responses_api_models", "policy_model"),
}
EPISODES = {
    "inside": {
        **AT["inside"],
        **LIMITS,
        "resources_server": ref("resources_servers", "box"),
        "agent_server": ref("responses_api_agents", "borrower"),
    },
    "outside": {
        **AT["outside"],
        **LIMITS,
        "resources_server": ref("resources_servers", "tools"),
        "agent_server": ref("responses_api_agents", "caller"),
        "resources_tool_transports": ["direct_http"],
    },
}
CONFIG = {
    "box": resources(INSIDE),
    "tools": resources(OUTSIDE),
    "sandbox": {"benchflow": {"broker": f"{INSIDE}/sandboxes"}},
    "borrower": {"responses_api_agents": {"borrower": AT["borrower"]}},
    "caller": {"responses_api_agents": {"simple_agent": CALLER}},
    "policy_model": {"responses_api_models": {"scripted": AT["model"]}},
    "inside": {"environment_servers": {"single_agent_turn": EPISODES["inside"]}},
    "outside": {"environment_servers": {"single_agent_turn": EPISODES["outside"]}},
    "head_server": {"host": "127.0.0.1", "port": 1},
}
os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(CONFIG)

import httpx  # noqa: E402
import uvicorn  # noqa: E402
from environment_servers.single_agent_turn.app import (  # noqa: E402
    SingleAgentTurnEnvironmentServer,
    SingleAgentTurnEnvironmentServerConfig,
)
from fastapi import Body, Request  # noqa: E402
from nemo_gym.base_resources_server import ResourcesSeedSessionRequest  # noqa: E402
from nemo_gym.base_responses_api_agent import (  # noqa: E402
    AgentCloseSessionResponse,
    AgentSessionState,
    BaseResponsesAPIAgentConfig,
    SimpleResponsesAPIAgent,
)
from nemo_gym.base_responses_api_model import (  # noqa: E402
    BaseResponsesAPIModelConfig,
    SimpleResponsesAPIModel,
)
from nemo_gym.openai_utils import (  # noqa: E402
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
)
from nemo_gym.sandbox import (  # noqa: E402
    AsyncSandbox,
    create_provider,
    resolve_provider_config,
)
from nemo_gym.server_utils import ServerClient, get_global_config_dict  # noqa: E402
from nemo_gym.testing.session_conformance import (  # noqa: E402
    check_resources_session_contract,
)
from responses_api_agents.simple_agent.app import SimpleAgent, SimpleAgentConfig  # noqa: E402


def response(item: dict[str, Any]) -> NeMoGymResponse:
    """Return a response with one item."""
    return NeMoGymResponse.model_validate(
        {
            "id": "r",
            "created_at": 0,
            "model": "scripted",
            "object": "response",
            "output": [item],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }
    )


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message", "id": "m", "role": "assistant", "status": "completed",
        "content": content,
    }  # fmt: skip


@dataclass
class BorrowedState(AgentSessionState):
    sandbox: AsyncSandbox


class Borrower(SimpleResponsesAPIAgent):
    """Runs the command in the sandbox that the environment server hands over."""

    config: BaseResponsesAPIAgentConfig

    async def _seed_agent_session_state(self, body: Any) -> BorrowedState:
        connection = body.sandbox_access.connection
        config = resolve_provider_config(connection.provider_config_ref, get_global_config_dict())
        provider = create_provider(config)
        sandbox = await AsyncSandbox.connect(connection.descriptor, provider=provider)
        return BorrowedState(request=body, sandbox=sandbox)

    async def responses(
        self,
        request: Request,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),  # noqa: B008
    ) -> NeMoGymResponse:
        state = self._require_agent_session(self._agent_session_id_from_request(request) or "")
        assert isinstance(state, BorrowedState)
        workdir = state.request.sandbox_access.workdir
        result = await state.sandbox.exec(COMMAND, cwd=workdir, timeout_s=30)
        assert result.return_code == 0, result
        await state.sandbox.upload("up", "/tmp/up")
        await state.sandbox.download("/tmp/up", "down")
        content = await asyncio.to_thread(Path("down").read_bytes)
        return response(message(content.hex()))

    async def _close_agent_session_state(self, state: Any) -> AgentCloseSessionResponse:
        await state.sandbox.disconnect()
        return AgentCloseSessionResponse(agent_session_id=state.request.agent_session_id)

    async def run(self, body: Any = Body()) -> Any:  # noqa: B008
        raise NotImplementedError


class ScriptedModel(SimpleResponsesAPIModel):
    """Calls the shell once, and then says that it is done."""

    config: BaseResponsesAPIModelConfig

    async def chat_completions(self, body: Any = Body()) -> Any:  # noqa: B008
        raise NotImplementedError

    async def responses(
        self,
        body: NeMoGymResponseCreateParamsNonStreaming = Body(),  # noqa: B008
    ) -> NeMoGymResponse:
        if any(item.model_dump().get("type") == "function_call_output" for item in body.input):
            return response(message("done"))
        arguments = json.dumps({"command": COMMAND})
        call = {"type": "function_call", "call_id": "c", "name": "bash", "arguments": arguments}
        return response(call)


def client() -> ServerClient:
    return ServerClient(
        head_server_config=ServerClient.load_head_server_config(),
        global_config_dict=get_global_config_dict(),
    )


def apps() -> dict[str, Any]:
    """Return the applications by listener."""
    episodes, settings = SingleAgentTurnEnvironmentServer, SingleAgentTurnEnvironmentServerConfig
    servers: dict[str, Any] = {
        "borrower": Borrower(
            config=BaseResponsesAPIAgentConfig(**AT["borrower"], name="borrower"),
            server_client=client(),
        ),
        "caller": SimpleAgent(
            config=SimpleAgentConfig(**CALLER, name="caller"), server_client=client()
        ),
        "model": ScriptedModel(
            config=BaseResponsesAPIModelConfig(**AT["model"], name="policy_model"),
            server_client=client(),
        ),
        **{
            name: episodes(config=settings(**given, name=name), server_client=client())
            for name, given in EPISODES.items()
        },
    }
    return {name: server.setup_webserver() for name, server in servers.items()}


async def relay(scope: Any, receive: Any, send: Any) -> None:
    """Answer as our resources server answers: the check wants an application of its process."""
    if scope["type"] == "lifespan":
        return
    body = (await receive())["body"]
    async with httpx.AsyncClient(base_url=INSIDE, timeout=60) as http:
        reply = await http.request(scope["method"], scope["path"], content=body)
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": reply.content})


def check_contract() -> None:
    """Check our server by NeMo Gym's own check of sessions."""
    seed = ResourcesSeedSessionRequest.model_validate(
        {
            "resources_session_id": "checked",
            "episode_id": {"rollout_id": "checked"},
            "task_id": INSIDE_ROW["task_id"],
            "task_data": INSIDE_ROW["task_input"]["task_data"],
        }
    )
    check_resources_session_contract(relay, seed, keeps_state=True)


async def main() -> dict[str, Any]:
    """Serve, and run one episode each."""
    servers, found = [], {}
    async with asyncio.TaskGroup() as tasks:
        for name, app in apps().items():
            server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
            servers.append(server)
            tasks.create_task(server.serve([LISTENERS[name]]))
        while not all(server.started for server in servers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(timeout=120) as http:
            for name, row in (("inside", INSIDE_ROW), ("outside", OUTSIDE_ROW)):
                body = {"episode_id": {"rollout_id": name, "attempt": 0}, "task": row}
                url = f"http://127.0.0.1:{AT[name]['port']}/run"
                found[name] = (await http.post(url, json=body)).json()
        await asyncio.to_thread(check_contract)
        for server in servers:
            server.should_exit = True
    return found


Path("up").write_bytes(b"\x00\xff")
print(json.dumps(asyncio.run(main())), flush=True)
os._exit(0)
