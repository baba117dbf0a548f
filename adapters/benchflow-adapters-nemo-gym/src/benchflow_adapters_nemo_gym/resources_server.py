"""Our tasks as a resources server of NeMo Gym: seed, tools, MCP, verify, close.

Source of the format: nemo-gym 0.4.0, `SimpleResourcesServer` and `MCPResourcesServer` of
`nemo_gym.base_resources_server`; and nemo-gym 0.7.0, `ResourcesSeedSessionRequest` and the other
types of its environment servers.
"""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from benchflow_contracts import BenchFlowError, Task
from benchflow_tool_sessions import (
    FORK_KEY_HEADER,
    FORK_PATH,
    SessionManager,
    fork_fault,
    read_fork,
)
from litestar import Litestar, Response, get, post
from litestar.connection import ASGIConnection
from litestar.datastructures import MutableScopeHeaders, State
from litestar.params import FromPath
from litestar.types import Message, Scope

from .broker_access import BrokerAccess
from .broker_app import broker_routes
from .descriptor import MCP_TOKEN_HEADER, SessionSigner, Topology
from .hostile_json import last_message
from .server_parts import Call, TaskIndex, make_app, read_object, scored_row
from .sessions import ResourcesServer
from .tool_mcp import answer_message


def create_resources_app(
    manager: SessionManager | AbstractAsyncContextManager[SessionManager],
    tasks: Sequence[Task],
    *,
    secret: bytes,
    name: str = "benchflow",
    topology: Topology = "env-sandboxed",
    broker_tokens: Iterable[str] = (),
    provider_config: str = "sandbox",
) -> Litestar:
    """Return the application of a resources server.

    The routes have no authentication of their own, as those of NeMo Gym: listen on an address that
    only its servers reach. A session needs its cookie or its MCP token. The routes below
    `/sandboxes` are a broker that lends the sandboxes of sessions; they need a bearer token.

    Args:
        manager: The sessions. If it is `SessionManager.running(...)`, the application runs it.
        tasks: The tasks. A row names one by its id.
        secret: Signs cookies and tokens. All workers share it.
        name: The name of the instance in NeMo Gym's configuration.
        topology: Where the agent runs. In `whole-interaction` an outer program runs it in the
            sandbox of the session, which it acquires by the name of the rollout and a token.
        broker_tokens: Tokens for the sandboxes of all sessions.
        provider_config: The block of NeMo Gym's configuration with our provider, for an agent
            server that gets a reference.

    Raises:
        UsageError: Two tasks have one id, or the secret or a token is short.
    """
    index, signer = TaskIndex(tasks), SessionSigner(secret)
    access = BrokerAccess.of(broker_tokens, signer)

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            running = (
                manager
                if isinstance(manager, SessionManager)
                else await stack.enter_async_context(manager)
            )
            server = ResourcesServer(running, index, signer, name, topology, provider_config)
            await stack.enter_async_context(server.broker.running())
            app.state.update({"server": server, "broker": server.broker, "broker_access": access})
            yield

    return make_app(
        [
            seed_session,
            close_session,
            serve_mcp,
            verify,
            show_reverify_mode,
            call_tool,
            fork,
            broker_routes("/sandboxes"),
        ],
        lifespan,
        before_send=[_repeat_cookie],
    )


@post("/seed_session", status_code=200)
async def seed_session(request: Call, state: State) -> Response[dict[str, Any]]:
    """Start the sandbox of the row's task. Cookie, MCP token and reference name the session.

    A body with a `resources_session_id` is of an environment server of NeMo Gym 0.7. A second
    request with the same body returns the same session.
    """
    server, row = _server(state), await read_object(request)
    base_url = str(request.base_url)
    if "resources_session_id" in row:
        episode = await server.seed_episode(row, base_url)
        cookie = server.cookie_of(episode.rollout or "")
        return Response(dict(episode.reply or {}), cookies=[cookie])
    session = await server.open(server.tasks.find(row.get("verifier_metadata")))
    reply = server.descriptor_of(session, base_url).seed_reply(server.provider_config)
    return Response(reply | {"prompt": session.prompt}, cookies=[server.cookie_of(session.id)])


@post("/close_session", status_code=200)
async def close_session(request: Call, state: State) -> dict[str, Any]:
    """End the session of an episode. A second request, and one without a session, has no effect."""
    row = await read_object(request)
    return {"resources_session_id": await _server(state).close_episode(row)}


@post("/mcp", status_code=200)
async def serve_mcp(request: Call, state: State) -> Response[dict[str, Any] | None]:
    """Answer one MCP message. The header with the token names the session."""
    message = await read_object(request)
    server, token = _server(state), request.headers.get(MCP_TOKEN_HEADER)
    reply = await answer_message(
        message, lambda: server.session_with_tools(token, "mcp"), server.name
    )
    return Response(reply, status_code=202 if reply is None else 200)


@post("/verify", status_code=200)
async def verify(request: Call, state: State) -> dict[str, Any]:
    """Submit the last message, grade in a fresh sandbox, and return the row with its reward.

    The session is closed then. A second request returns the same reward.
    """
    server, row = _server(state), await read_object(request)
    rollout = server.rollout_of(request.cookies.get(server.cookie), "cookie")
    task = server.tasks.find(row.get("verifier_metadata"))
    outcome = await server.verify(rollout, task, last_message(row.get("response")))
    scored = scored_row(row, rollout, outcome.reward, outcome.items, outcome.unscored)
    return {**scored, "truncated": outcome.truncated}


@get("/reverify_mode")
async def show_reverify_mode() -> str:
    """Return that a stored rollout cannot be verified again: its sandbox is gone."""
    return "unsupported"


@post("/{tool:str}", status_code=200)
async def call_tool(tool: FromPath[str], request: Call, state: State) -> Response[str]:
    """Call a tool with the body as arguments. The text is what the model reads.

    A failed tool has the status 422, a session that has ended 410. Both have a text too.
    """
    server = _server(state)
    session = server.session_with_tools(request.cookies.get(server.cookie), "cookie")
    result = await session.call(tool, await read_object(request))
    return Response(
        result.text, status_code=422 if result.is_error else 200, media_type="text/plain"
    )


@post(FORK_PATH, status_code=200)
async def fork(request: Call, state: State) -> Response[dict[str, Any]]:
    """Fork the session of the cookie. Each child has a cookie and an MCP token of its own.

    This route is not of NeMo Gym.
    """
    server, base_url = _server(state), str(request.base_url)
    cookie, key = request.cookies.get(server.cookie), request.headers.get(FORK_KEY_HEADER)
    try:
        n, _ = read_fork(await request.body())

        async def run() -> list[dict[str, Any]]:
            children = await server.fork(server.session_of(cookie, "cookie"), n)
            return [server.child_reply(child, base_url) for child in children]

        replies = await server.forks.reply(key, server.rollout_of(cookie, "cookie"), n, run)
    except BenchFlowError as error:
        status, body = fork_fault(error)
        return Response(body, status_code=status)
    return Response({"sessions": replies})


async def _repeat_cookie(message: Message, scope: Scope) -> None:
    """Send the cookie of the request back.

    The simple agent of NeMo Gym sends with each request only the cookies of the last response.
    """
    server = scope["litestar_app"].state.get("server")
    if message["type"] != "http.response.start" or server is None:
        return
    given = ASGIConnection[Any, Any, Any, Any](scope).cookies.get(server.cookie, "")
    headers = MutableScopeHeaders.from_message(message)
    if server.signer.read(given, "cookie") is None or "set-cookie" in headers:
        return
    headers.add("set-cookie", server.make_cookie(given).to_header(header=""))


def _server(state: State) -> ResourcesServer:
    server: ResourcesServer = state["server"]
    return server
