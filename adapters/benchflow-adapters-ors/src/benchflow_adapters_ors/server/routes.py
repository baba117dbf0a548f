"""The requests of the Open Reward Standard."""

from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from typing import Annotated, Any, Final, TypeVar

from benchflow_contracts import BenchFlowError, GroupReward, Model
from benchflow_serve.security import PUBLIC
from benchflow_tool_sessions import (
    FORK_KEY_HEADER,
    FORK_PATH,
    SUBMIT,
    ToolSpec,
    fork_fault,
    read_fork,
)
from benchflow_tool_sessions.sandbox_tools import SPECS
from litestar import Request, Response, get, post
from litestar.params import Parameter
from litestar.response import Stream

from benchflow_adapters_ors.sse import encode_event
from benchflow_adapters_ors.wire import (
    SECRETS_HEADER,
    SESSION_HEADER,
    CallRequest,
    CreateRequest,
    ScoreGroupRequest,
    SplitRequest,
    TaskRangeRequest,
    TaskRequest,
    TerminalTool,
    TextBlock,
)

from .catalogue import EnvironmentCatalogue, ServedEnvironment, spec_of
from .groups import score_candidates
from .http_errors import RequestError
from .secrets import read_secrets
from .sessions import SessionTable

_M = TypeVar("_M", bound=Model)
_Request = Request[Any, Any, Any]
_Env = Annotated[str, Parameter(max_length=200)]
_STREAM_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_SUBMIT_SPEC: Final = ToolSpec(
    SUBMIT,
    "End the work. The result is graded, and no further call is possible.",
    {"type": "object", "properties": {"message": {"type": "string"}}},
)
_TERMINAL: Final = TerminalTool(
    name=SUBMIT, arg="message", description="Ends the work with the last message, and grades it."
)
DEFAULT: Final = "-"
"""Stands for the first environment in a path without an environment."""


@get("/health", opt=PUBLIC)
async def check_health() -> dict[str, str]:
    """Return whether the server takes requests. This needs no key."""
    return {"status": "ok"}


@get("/list_environments")
async def list_environments(request: _Request) -> list[str]:
    """Return the names of the environments."""
    return list(_catalogue(request).names)


@get("/{name:str}/tools")
async def list_tools(request: _Request, name: _Env) -> dict[str, Any]:
    """Return the tools that each task has. A session may have more."""
    _environment(request, name)
    return _tool_list(request, (*SPECS, _SUBMIT_SPEC))


@get("/{name:str}/splits")
async def list_splits(request: _Request, name: _Env) -> list[dict[str, Any]]:
    """Return the splits of an environment."""
    return [split.model_dump() for split in _environment(request, name).splits]


@post("/{name:str}/tasks", status_code=200)
async def list_tasks(request: _Request, name: _Env) -> dict[str, Any]:
    """Return the tasks of a split."""
    body = await _body(request, SplitRequest)
    environment = _environment(request, name)
    return _tasks(environment, [spec_of(task) for task in environment.split(body.split)])


@post("/{name:str}/num_tasks", status_code=200)
async def count_tasks(request: _Request, name: _Env) -> dict[str, int]:
    """Return the number of tasks of a split."""
    body = await _body(request, SplitRequest)
    return {"num_tasks": len(_environment(request, name).split(body.split))}


@post("/{name:str}/task", status_code=200)
async def show_task(request: _Request, name: _Env) -> dict[str, Any]:
    """Return one task of a split."""
    body = await _body(request, TaskRequest)
    environment = _environment(request, name)
    task = environment.task_at(body.split, body.index)
    return {"task": spec_of(task), "env_name": environment.name}


@post("/{name:str}/task_range", status_code=200)
async def list_task_range(request: _Request, name: _Env) -> dict[str, Any]:
    """Return tasks of a split, by the rules of a Python slice."""
    body = await _body(request, TaskRangeRequest)
    environment = _environment(request, name)
    found = environment.split(body.split)[body.start : body.stop]
    return _tasks(environment, [spec_of(task) for task in found])


@post("/create_session", status_code=200)
async def create_session(request: _Request) -> Stream:
    """Stream a new session id. The published clients read it as an event."""
    sid = _sessions(request).new_id()

    async def events() -> AsyncGenerator[bytes]:
        yield encode_event("task_id", sid) + encode_event("end", "")

    return _stream(events())


@post("/create", status_code=200)
async def create(request: _Request) -> dict[str, str]:
    """Start the sandbox of a session, and return at once."""
    sid = _sid(request)
    body = await _body(request, CreateRequest)
    toolset = _toolset(request, body.toolset_name)
    header, allowed = request.headers.get(SECRETS_HEADER), request.app.state["allowed_secrets"]
    secrets = read_secrets(body.secrets, header, allowed)
    environment = _catalogue(request).find(body.env_name)
    if body.task_spec is not None:
        task = environment.task_of(body.task_spec)
    else:
        assert body.split is not None
        assert body.index is not None
        task = environment.task_at(body.split, body.index)
    _sessions(request).create(sid, environment.name, task, secrets, toolset)
    return {"sid": sid}


@post("/ping", status_code=200)
async def ping(request: _Request) -> dict[str, str]:
    """Keep a session from being deleted as idle."""
    _sessions(request).touch(_sid(request))
    return {"status": "ok"}


@post(["/delete", "/delete_session"], status_code=200)
async def delete(request: _Request) -> dict[str, str]:
    """End a session, and delete its sandbox. Repeatable."""
    sid = _sid(request)
    await _sessions(request).delete(sid)
    return {"sid": sid}


@get("/{name:str}/prompt")
async def show_prompt(request: _Request, name: _Env) -> list[dict[str, Any]]:
    """Return the prompt of the task."""
    calls = await _sessions(request).calls(_sid(request), _named(name))
    return [TextBlock(text=calls.session.prompt).model_dump()]


@get("/{name:str}/messages")
async def show_messages(request: _Request, name: _Env) -> list[dict[str, Any]]:
    """Return the prompt of the task as a conversation."""
    blocks = await show_prompt.fn(request, name)
    return [{"role": "user", "blocks": blocks, "detail": None}]


@get("/{name:str}/task_tools")
async def list_task_tools(request: _Request, name: _Env) -> dict[str, Any]:
    """Return the tools of the session."""
    calls = await _sessions(request).calls(_sid(request), _named(name))
    return _tool_list(request, await calls.tools())


@post("/{name:str}/call", status_code=200)
async def call(request: _Request, name: _Env) -> Stream:
    """Call a tool, and stream its result."""
    body = await _body(request, CallRequest)
    calls = await _sessions(request).calls(_sid(request), _named(name))
    return _stream(calls.stream(body))


@post("/{name:str}/score_group", status_code=200)
async def score_group(request: _Request, name: _Env) -> Stream:
    """Score candidates of the session's task together, and stream the scores."""
    calls = await _sessions(request).calls(_sid(request), _named(name))
    reward: GroupReward | None = request.app.state["group_reward"]
    if reward is None:
        raise RequestError(404, "the server does not score groups")
    body = await _body(request, ScoreGroupRequest)

    def run(_: str) -> Coroutine[Any, Any, tuple[bytes, ...]]:
        return score_candidates(reward, calls.task, body.candidates)

    return _stream(calls.stream_result(body.task_id, run))


@post(FORK_PATH, status_code=200)
async def fork(request: _Request) -> Response[dict[str, Any]]:
    """Fork the session into sessions with ids of their own. It is not of the standard."""
    try:
        n, _ = read_fork(await request.body())
        sid, key = _sid(request), request.headers.get(FORK_KEY_HEADER)
        sids = await _sessions(request).fork(sid, n, key=key)
    except RequestError:
        raise
    except BenchFlowError as error:
        status, body = fork_fault(error)
        return Response(body, status_code=status)
    return Response({"sids": sids})


def _toolset(request: _Request, name: str | None) -> frozenset[str] | None:
    toolsets: Mapping[str, frozenset[str]] = request.app.state["toolsets"]
    if name is None:
        return None
    if name not in toolsets:
        known = ", ".join(toolsets) or "none"
        raise RequestError(400, f"unknown toolset {name[:200]!r}; known: {known}")
    return toolsets[name]


def _stream(events: AsyncGenerator[bytes]) -> Stream:
    return Stream(events, media_type="text/event-stream", headers=_STREAM_HEADERS, status_code=200)


def _catalogue(request: _Request) -> EnvironmentCatalogue:
    catalogue: EnvironmentCatalogue = request.app.state["catalogue"]
    return catalogue


def _sessions(request: _Request) -> SessionTable:
    sessions: SessionTable = request.app.state["sessions"]
    return sessions


def _named(name: str) -> str | None:
    return None if name == DEFAULT else name


def _environment(request: _Request, name: str) -> ServedEnvironment:
    return _catalogue(request).find(_named(name))


def _sid(request: _Request) -> str:
    sid = request.headers.get(SESSION_HEADER, "").strip()
    if not sid:
        raise RequestError(400, f"{SESSION_HEADER} header is required")
    return sid


async def _body(request: _Request, model: type[_M]) -> _M:
    try:
        return model.model_validate_json(await request.body())
    except RecursionError:
        raise RequestError(400, "the body nests too deeply") from None


def _tasks(environment: ServedEnvironment, specs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"tasks": specs, "env_name": environment.name}


def _tool_list(request: _Request, tools: Iterable[ToolSpec]) -> dict[str, Any]:
    # The published clients build a class of exactly these three keys.
    shown = [
        {"name": t.name, "description": t.description, "input_schema": dict(t.input_schema)}
        for t in tools
    ]
    scores = request.app.state["group_reward"] is not None
    return {"tools": shown, "terminal_tool": _TERMINAL.model_dump(), "supports_score_group": scores}


ROUTES: Final = (
    check_health,
    list_environments,
    list_tools,
    list_splits,
    list_tasks,
    count_tasks,
    show_task,
    list_task_range,
    create_session,
    create,
    ping,
    delete,
    show_prompt,
    show_messages,
    list_task_tools,
    call,
    score_group,
    fork,
)
