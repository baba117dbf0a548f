"""Our tasks as a resources server of NeMo Gym: seed, tools, MCP, verify.

Source of the format: nemo-gym 0.4.0, `SimpleResourcesServer` and `MCPResourcesServer` of
`nemo_gym.base_resources_server`.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from benchflow_contracts import BenchFlowError, RolloutIdentity, Task, UsageError
from benchflow_tool_sessions import (
    NoSessionError,
    Outcome,
    SessionEndedError,
    SessionManager,
    ToolSession,
)
from litestar import Litestar, Request, Response, get, post
from litestar.connection import ASGIConnection
from litestar.datastructures import Cookie, MutableScopeHeaders, State
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import Message, Scope

from .descriptor import MCP_TOKEN_HEADER, McpAccess, SessionDescriptor, SessionSigner
from .hostile_json import as_list, as_object, last_message
from .http_faults import read_object, show_fault, show_http_fault
from .metrics import aggregate_metrics
from .tool_mcp import answer_message

RESERVED_NAMES: Final = frozenset({"verify", "seed_session", "aggregate_metrics", "mcp", ""})
"""Routes of a resources server. A tool cannot have one of these names."""
_MAX_BODY: Final = 64 * 1024 * 1024
_MOST_PROMPTS: Final = 100

Call = Request[Any, Any, State]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a session that is closed."""

    task: str
    outcome: Outcome


class VerdictLog:
    """The last verdicts by rollout: a client that lost a response asks again."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()

    def find(self, rollout: str) -> Verdict | None:
        """Return the verdict of a rollout, if it is among the last ones."""
        return self._verdicts.get(rollout)

    def add(self, rollout: str, verdict: Verdict) -> Verdict:
        """Add a verdict without its whole record, and return it. The first one counts."""
        light = replace(verdict, outcome=replace(verdict.outcome, result=None))
        kept = self._verdicts.setdefault(rollout, light)
        while len(self._verdicts) > self._most:
            self._verdicts.popitem(last=False)
        return kept


@dataclass(frozen=True, slots=True)
class ResourcesServer:
    """What the routes need: the sessions, the tasks by id, and the signer of names."""

    manager: SessionManager
    tasks: Mapping[str, Task]
    signer: SessionSigner
    name: str
    verdicts: VerdictLog = field(default_factory=VerdictLog)

    @property
    def cookie(self) -> str:
        """The name of the cookie. Two servers behind one agent have different ones."""
        return f"BenchFlow___{self.name}"

    def make_cookie(self, value: str) -> Cookie:
        """Return the cookie of a signed name."""
        return Cookie(self.cookie, value=value, httponly=True, samesite="lax")

    def task_of(self, row: Mapping[str, Any]) -> Task:
        """Return the task that a row names in `verifier_metadata.task_id`.

        Raises:
            UsageError: The row names no task, or one that the server does not have.
        """
        name = as_object(row.get("verifier_metadata")).get("task_id")
        if not isinstance(name, str) or name not in self.tasks:
            raise UsageError(
                f"the row has no task of this server in verifier_metadata.task_id: {name!r:.200}",
                hint="write the rows with benchflow_adapters_nemo_gym.rows",
            )
        return self.tasks[name]

    def rollout_of(self, signed: str | None, use: Literal["cookie", "mcp"]) -> str:
        """Return the rollout that a cookie or an MCP token names.

        Raises:
            NoSessionError: It is missing or forged.
        """
        rollout = self.signer.read(signed or "", use)
        if rollout is None:
            raise NoSessionError(
                f"the request has no valid {use} of a session",
                hint="call /seed_session first, and send back what it returns",
            )
        return rollout

    def session_of(self, signed: str | None, use: Literal["cookie", "mcp"]) -> ToolSession:
        """Return the session of a cookie or an MCP token.

        Raises:
            NoSessionError: It is missing or forged, or its session is gone.
            SessionEndedError: The session was verified.
        """
        rollout = self.rollout_of(signed, use)
        if self.verdicts.find(rollout) is not None:
            raise SessionEndedError("the session has ended: it was verified")
        return self.manager.find(rollout)


def create_resources_app(
    manager: SessionManager | AbstractAsyncContextManager[SessionManager],
    tasks: Sequence[Task],
    *,
    secret: bytes,
    name: str = "benchflow",
) -> Litestar:
    """Return the application of a resources server.

    The routes have no authentication of their own, as those of NeMo Gym: listen on an address that
    only its servers reach. A session needs its cookie or its MCP token.

    Args:
        manager: The sessions. If it is `SessionManager.running(...)`, the application runs it.
        tasks: The tasks. A row names one by its id.
        secret: Signs cookies and tokens. All workers share it.
        name: The name of the instance in NeMo Gym's configuration.

    Raises:
        UsageError: Two tasks have one id, or the secret is short.
    """
    by_id = {task.id: task for task in tasks}
    if len(by_id) != len(tasks):
        raise UsageError("two tasks have the same id", hint="serve each task once")
    signer = SessionSigner(secret)

    @asynccontextmanager
    async def lifespan(app: Litestar) -> AsyncGenerator[None]:
        if isinstance(manager, SessionManager):
            app.state["server"] = ResourcesServer(manager, by_id, signer, name)
            yield
            return
        async with manager as running:
            app.state["server"] = ResourcesServer(running, by_id, signer, name)
            yield

    return Litestar(
        route_handlers=[show_health, seed_session, serve_mcp, verify, aggregate, call_tool],
        exception_handlers={BenchFlowError: show_fault, HTTPException: show_http_fault},
        before_send=[_repeat_cookie],
        lifespan=[lifespan],
        request_max_body_size=_MAX_BODY,
        openapi_config=None,
        logging_config=None,
    )


@get("/")
async def show_health() -> dict[str, str]:
    """Return that the server answers."""
    return {"status": "ok"}


@post("/seed_session", status_code=200)
async def seed_session(request: Call, state: State) -> Response[dict[str, Any]]:
    """Start the sandbox of the row's task. The cookie and the MCP token both name the session."""
    server, row = _server(state), await read_object(request)
    session = await server.manager.open(server.task_of(row))
    names = [tool.name for tool in await session.tools()]
    if clash := sorted(RESERVED_NAMES.intersection(names)):
        await server.manager.close(session.id)
        raise UsageError(f"the task has tools with names of routes: {clash}")
    token = server.signer.sign(session.id, "mcp")
    descriptor = SessionDescriptor(
        topology="env-sandboxed",
        identity=RolloutIdentity(rollout=session.id, task=session.task.id),
        mcp=McpAccess(server_name=server.name, headers={MCP_TOKEN_HEADER: token}),
    )
    cookie = server.make_cookie(server.signer.sign(session.id, "cookie"))
    return Response(descriptor.seed_reply() | {"prompt": session.prompt}, cookies=[cookie])


@post("/mcp", status_code=200)
async def serve_mcp(request: Call, state: State) -> Response[dict[str, Any] | None]:
    """Answer one MCP message. The header with the token names the session."""
    message = await read_object(request)
    server, token = _server(state), request.headers.get(MCP_TOKEN_HEADER)
    reply = await answer_message(message, lambda: server.session_of(token, "mcp"), server.name)
    return Response(reply, status_code=202 if reply is None else 200)


@post("/verify", status_code=200)
async def verify(request: Call, state: State) -> dict[str, Any]:
    """Submit the last message, grade in a fresh sandbox, and return the row with its reward.

    The session is closed then, so that it does not count as an open one. A second request returns
    the same reward.
    """
    server, row = _server(state), await read_object(request)
    rollout = server.rollout_of(request.cookies.get(server.cookie), "cookie")
    task = server.task_of(row)
    verdict = server.verdicts.find(rollout)
    if verdict is None:
        session = server.session_of(request.cookies.get(server.cookie), "cookie")
        if task is not session.task:
            raise UsageError("the row is of another task than the session")
        outcome = await _outcome_of(session, last_message(row.get("response")))
        verdict = server.verdicts.add(rollout, Verdict(task.id, outcome))
        await server.manager.close(rollout)
    if verdict.task != task.id:
        raise UsageError("the row is of another task than the session")
    outcome = verdict.outcome
    if outcome.reward is None:
        raise HTTPException(
            status_code=503, detail=f"the rollout has no reward: {outcome.unscored}"
        )
    return {
        **row,
        "reward": outcome.reward,
        "reward_components": dict(outcome.items),
        "truncated": outcome.truncated,
        "rollout_id": rollout,
    }


@post("/aggregate_metrics", status_code=200)
async def aggregate(request: Call) -> dict[str, Any]:
    """Return statistics of verified rollouts."""
    given = as_list((await read_object(request)).get("verify_responses"))
    return aggregate_metrics([as_object(each) for each in given])


@post("/{tool:str}", status_code=200)
async def call_tool(tool: FromPath[str], request: Call, state: State) -> Response[str]:
    """Call a tool with the body as arguments. The text is what the model reads.

    A failed tool has the status 422, a session that has ended 410. Both have a text too.
    """
    server = _server(state)
    session = server.session_of(request.cookies.get(server.cookie), "cookie")
    result = await session.call(tool, await read_object(request))
    return Response(
        result.text, status_code=422 if result.is_error else 200, media_type="text/plain"
    )


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


async def _outcome_of(session: ToolSession, message: str) -> Outcome:
    """Submit until the task has no further prompt: nobody is there to answer one."""
    for _ in range(_MOST_PROMPTS):
        try:
            outcome = await session.submit(message)
        except SessionEndedError:
            return await session.outcome()
        if outcome is not None:
            return outcome
        message = ""
    raise UsageError(f"task {session.task.id!r} has more than {_MOST_PROMPTS} prompts")


def _server(state: State) -> ResourcesServer:
    server: ResourcesServer = state["server"]
    return server
