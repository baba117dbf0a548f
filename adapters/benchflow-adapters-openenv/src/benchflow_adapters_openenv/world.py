"""An episode of an OpenEnv server as the world of a rollout: `[environment] provider = "openenv"`.

A server whose actions are tool calls gives its tools to the agent. Any other server gives the tool
`step`, whose arguments are the action.
"""

import http
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, cast

import aiohttp
from benchflow_contracts import (
    EnvironmentError_,
    EnvironmentFactory,
    Model,
    Task,
)
from benchflow_env_outside import (
    WorldAnswer,
    WorldTool,
    outside_environment,
    read_options,
    secret_for,
    world_url,
)

NAME = "openenv"
TOKEN: Final = "BENCHFLOW_OPENENV_TOKEN"  # noqa: S105 - the name of a variable
"""The operator's variable with the token of the servers. `$BENCHFLOW_OPENENV_TOKEN_FILE` names a
file with the token instead."""
_MESSAGE_BYTES = 16 * 1024 * 1024


class OpenEnvSettings(Model):
    """`[environment.options]` of a task."""

    url: str
    """The server, such as `http://127.0.0.1:8000`."""
    snapshots: Literal["replay", "none"] = "replay"
    """`replay`: a fork repeats the actions in an episode with the same seed. `none`: the server
    does not repeat itself, so the rollout cannot be forked."""


def environment(task: Task, *, manifest: Path | None = None) -> EnvironmentFactory:
    """Return the environment of a task; the entry point of `benchflow.environments`.

    Raises:
        TaskError: The settings are malformed, or the operator does not allow the host.
        UsageError: The operator's token cannot be read, or must not go to the host.
    """
    del manifest
    settings = read_options(
        OpenEnvSettings, task, hint='write [environment.options] with url = "http://HOST:PORT"'
    )
    url = world_url(settings.url)
    token = secret_for(url, TOKEN)
    return outside_environment(
        task, NAME, lambda: OpenEnvClient(url, token), snapshots=settings.snapshots
    )


class OpenEnvClient:
    """One session over the server's WebSocket: `WorldClient`. `token` is sent as a bearer token."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._token = token
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._action_schema: dict[str, Any] = {}

    async def open(self, task: Mapping[str, Any], seed: int) -> WorldAnswer:
        """Connect, and reset the environment. The task's data are arguments of the reset."""
        headers: dict[str, str] = {}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        self._http = aiohttp.ClientSession(headers=headers, trace_configs=[_no_redirects()])
        async with self._http.get(f"{self._url}/schema") as response:
            if response.status != http.HTTPStatus.OK:
                raise self._refusal("schema", response.status)
            schema = _object(json.loads(await _body(response)))
        self._action_schema = _object(schema.get("action"))
        try:
            self._socket = await self._http.ws_connect(
                f"{self._url}/ws", max_msg_size=_MESSAGE_BYTES, autoping=True
            )
        except aiohttp.WSServerHandshakeError as error:
            # The error has the headers of the request, and the token among them.
            raise self._refusal("ws", error.status) from None
        # OpenEnv's seeds are 32-bit in many environments.
        data = {**task, "seed": seed & 0x7FFFFFFF}
        payload = await self._ask("reset", data)
        return WorldAnswer(text_of(payload))

    async def tools(self) -> Sequence[WorldTool]:
        """Return the server's tools, or the tool `step`."""
        if not self._has_tools:
            schema = _without_metadata(self._action_schema)
            description = str(schema.pop("description", "Take one action."))
            return [WorldTool("step", description, schema)]
        payload = await self._ask("step", {"type": "list_tools"})
        listed = _object(payload.get("observation")).get("tools")
        found = map(_object, cast("list[object]", listed) if isinstance(listed, list) else [])
        return [
            WorldTool(str(t.get("name")), str(t.get("description") or ""), _schema(t))
            for t in found
        ]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> WorldAnswer:
        """Send an action."""
        action: Mapping[str, Any] = arguments
        if self._has_tools:
            action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
        try:
            payload = await self._ask("step", action)
        except ActionRefusedError as error:
            return WorldAnswer(str(error), failed=True)
        reward: Any = payload.get("reward")
        return WorldAnswer(
            text_of(payload),
            # OpenEnv allows a boolean. Of another value, the session says that it is not a number.
            reward=float(reward) if isinstance(reward, bool) else reward,
            finished=payload.get("done") is True,
            failed=_has_failed(payload),
        )

    async def close(self) -> None:
        """End the session. Idempotent."""
        socket, http = self._socket, self._http
        self._socket = self._http = None
        try:
            # The server may be gone, and its session with it.
            if socket is not None and not socket.closed:
                with suppress(aiohttp.ClientError, ConnectionError):
                    await socket.send_json({"type": "close"})
                await socket.close()
        finally:
            if http is not None:
                await http.close()

    @property
    def _has_tools(self) -> bool:
        kind = _object(_object(self._action_schema.get("properties")).get("type"))
        return kind.get("const", kind.get("default")) == "call_tool"

    def _refusal(self, path: str, status: int) -> EnvironmentError_:
        hint = None
        if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
            known = "the server does not take the token of" if self._token else "set"
            hint = f"{known} ${TOKEN} or ${TOKEN}_FILE"
        return EnvironmentError_(f"{self._url}/{path} answered with {status}", hint=hint)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        assert self._socket is not None, "the world opens its client first"
        await self._socket.send_json({"type": kind, "data": data})
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EnvironmentError_(f"the OpenEnv server {self._url} ended the session")
        answer = _object(json.loads(cast("str", message.data)))
        body = _object(answer.get("data"))
        if answer.get("type") == "observation":
            return body
        text = f"{body.get('message', 'error')}: {body.get('errors', '')}"[:2000]
        if body.get("code") == "VALIDATION_ERROR":
            raise ActionRefusedError(text)
        hint = None
        if body.get("code") == "CAPACITY_REACHED":
            hint = "raise max_concurrent_envs of the server: each branch has a session of its own"
        raise EnvironmentError_(f"the OpenEnv server {self._url} failed: {text}", hint=hint)


def _no_redirects() -> aiohttp.TraceConfig:
    """Refuse redirects, which could lead to a host that the operator does not allow."""

    async def refuse(_session: object, _context: object, _params: object) -> None:
        raise EnvironmentError_("the OpenEnv server answered with a redirect")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    return config


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Return a body of limited size."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MESSAGE_BYTES:
            raise EnvironmentError_(f"a response has more than {_MESSAGE_BYTES} bytes")
    return bytes(body)


class ActionRefusedError(Exception):
    """The server did not accept the form of an action."""


def text_of(payload: Mapping[str, Any]) -> str:
    """Return an observation as JSON, without its metadata, which often has ids and clocks."""
    observation = {k: v for k, v in _object(payload.get("observation")).items() if k != "metadata"}
    shown: dict[str, Any] = {"observation": observation}
    if payload.get("reward") is not None:
        shown["reward"] = payload["reward"]
    if payload.get("done"):
        shown["done"] = True
    return json.dumps(shown, ensure_ascii=False)


def _has_failed(payload: Mapping[str, Any]) -> bool:
    """Return whether the agent's call failed, in an observation of a tool call."""
    observation = _object(payload.get("observation"))
    result = _object(observation.get("result"))
    return observation.get("error") is not None or result.get("is_error") is True


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = _object(tool.get("input_schema")) or _object(tool.get("inputSchema"))
    return schema or {"type": "object", "properties": {}}


def _without_metadata(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an action without the field that all actions of OpenEnv have."""
    properties = {k: v for k, v in _object(schema.get("properties")).items() if k != "metadata"}
    return {**schema, "type": "object", "properties": properties}


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
