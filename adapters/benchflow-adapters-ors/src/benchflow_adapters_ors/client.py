"""A client of ORS servers: the tasks of an environment, and sessions on them."""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx
from benchflow_contracts import Model
from pydantic import JsonValue, TypeAdapter, ValidationError

from .errors import OrsError, OrsProtocolError, OrsSessionLostError, OrsUnreachableError
from .sse import MAX_RESULT_BYTES, ResultReader
from .wire import (
    API_KEY_HEADER,
    PING_SEC,
    SECRETS_HEADER,
    SESSION_HEADER,
    Block,
    CallRequest,
    CallResult,
    CreateRequest,
    ErrorAnswer,
    GroupCandidate,
    GroupScore,
    GroupScores,
    ScoreGroupRequest,
    Split,
    SplitRequest,
    TaskCount,
    TaskPage,
    TaskRangeRequest,
    ToolFailure,
    ToolList,
    ToolSuccess,
)

_T = TypeVar("_T")
_NOT_REACHED: Final = frozenset({429, 502, 503, 504})
_TRIES: Final = 5
_MOST_PAUSE_SEC: Final = 10.0
_START_SEC: Final = 600.0
_SILENCE_SEC: Final = 30.0
"""A server sends a comment in an open stream every 10 s."""
_CONNECT_SEC: Final = 10.0
_MAX_BODY: Final = 16 * 2**20
_DETAIL_CHARS: Final = 500
_CREATED: Final = "Session already exists"
"""The detail by which every server refuses to create a session twice."""
_RESULT: Final[TypeAdapter[ToolSuccess | ToolFailure]] = TypeAdapter(CallResult)
_PROMPT: Final[TypeAdapter[list[Block]]] = TypeAdapter(list[Block])
_SPLITS: Final = TypeAdapter(list[Split])
_NAMES: Final = TypeAdapter(list[str])
_TOOLS: Final = TypeAdapter(ToolList)
_COUNT: Final = TypeAdapter(TaskCount)
_PAGE: Final = TypeAdapter(TaskPage)
_ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)
_DETAIL: Final = TypeAdapter(ErrorAnswer)
_SCORES: Final = TypeAdapter(GroupScores)


class OrsClient:
    """The environments of one server. Use it in `async with`, on one event loop."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        start_sec: float = _START_SEC,
    ) -> None:
        """Prepare the client, without a request.

        Args:
            url: The address of the server.
            api_key: Its key, sent as `X-API-Key`.
            transport: The transport of httpx, for example with own certificates.
            start_sec: How long to wait for a server or a session that starts, in seconds.
        """
        self._start_sec = start_sec
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={API_KEY_HEADER: api_key} if api_key else {},
            timeout=httpx.Timeout(60.0, connect=_CONNECT_SEC),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def environments(self) -> list[str]:
        """Return the names of the environments."""
        return await self.read(_NAMES, "GET", "/list_environments")

    async def splits(self, environment: str) -> list[Split]:
        """Return the splits of an environment."""
        return await self.read(_SPLITS, "GET", f"/{environment}/splits")

    async def count(self, environment: str, split: str) -> int:
        """Return the number of tasks of a split."""
        body = SplitRequest(split=split)
        answer = await self.read(_COUNT, "POST", f"/{environment}/num_tasks", body=body)
        return answer.num_tasks

    async def tasks(
        self, environment: str, split: str, start: int | None = None, stop: int | None = None
    ) -> TaskPage:
        """Return tasks of a split, by the rules of a Python slice."""
        body = TaskRangeRequest(split=split, start=start, stop=stop)
        return await self.read(_PAGE, "POST", f"/{environment}/task_range", body=body)

    async def read(
        self,
        kind: TypeAdapter[_T],
        method: str,
        path: str,
        *,
        sid: str | None = None,
        body: Model | None = None,
        headers: Mapping[str, str] | None = None,
        done_detail: str | None = None,
    ) -> _T:
        """Send a request that may be repeated, and return its answer.

        With `done_detail`, a repetition that the server refuses by this detail has succeeded: the
        server did the first request, and its answer was lost. The answer is then null.

        Raises:
            OrsError: The server refuses the request, or does not answer in time.
        """
        sent = self._http.build_request(
            method,
            path,
            content=None if body is None else _json(body),
            headers=_headers(sid, headers),
        )
        deadline, tries = time.monotonic() + self._start_sec, 0
        while True:
            retry_after = None
            try:
                answer = await self._http.send(sent, stream=True)
                content = await _body_of(answer)
                if answer.is_success:
                    return _checked(kind, content)
                failure = _refusal(answer, content)
                retry_after = answer.headers.get("Retry-After")
                if tries and done_detail is not None and done_detail in str(failure):
                    return _checked(kind, b"null")
            except httpx.HTTPError as error:
                failure = _unreachable(error)
            tries += 1
            await self._pause(failure, tries, retry_after, deadline)

    async def call(self, environment: str, sid: str, name: str, given: Mapping[str, Any]) -> str:
        """Call a tool, and return the JSON text of its result. The tool runs at most once.

        A connection that ends after the server has sent the id of the call is made again, and
        reads the result of the same call.

        Raises:
            OrsError: The tool failed, or the result cannot be read.
        """
        return await self._run(
            f"/{environment}/call",
            sid,
            lambda ident: CallRequest(name=name, input=dict(given), task_id=ident),
        )

    async def score_group(
        self, environment: str, sid: str, candidates: Sequence[GroupCandidate]
    ) -> Sequence[GroupScore]:
        """Return one score for each candidate, by comparison. The server scores at most once.

        Raises:
            OrsError: The environment does not score groups, failed, or sent too few scores.
        """
        given = tuple(candidates)
        try:
            text = await self._run(
                f"/{environment}/score_group",
                sid,
                lambda ident: ScoreGroupRequest(candidates=given, task_id=ident),
            )
        except OrsSessionLostError as error:
            if error.status == 404:
                message = f"environment {environment!r} does not score groups: {error}"
                raise OrsError(message, status=404) from error
            raise
        scores = _checked(_SCORES, text.encode("utf-8", "surrogatepass")).scores
        if len(scores) != len(given):
            raise OrsProtocolError(f"the server sent {len(scores)} scores for {len(given)}")
        return scores

    async def _run(self, path: str, sid: str, request_of: Callable[[str | None], Model]) -> str:
        """Send a request whose result is a stream, and read the result once and whole."""
        reader = ResultReader()
        deadline, tries = time.monotonic() + self._start_sec, 0
        while True:
            request = request_of(reader.task_id)
            retry_after = None
            try:
                async with self._http.stream(
                    "POST",
                    path,
                    content=_json(request),
                    headers={**_headers(sid), "Accept": "text/event-stream"},
                    timeout=httpx.Timeout(_SILENCE_SEC, connect=_CONNECT_SEC),
                ) as answer:
                    if answer.is_success:
                        found = await reader.read(answer)
                        if found is not None:
                            return found
                        failure: OrsError = OrsUnreachableError(
                            "a result ended before its end", retryable=True
                        )
                    else:
                        failure = _refusal(answer, await _body_of(answer))
                        retry_after = answer.headers.get("Retry-After")
            except httpx.HTTPError as error:
                failure = _unreachable(error)
            if reader.task_id is None and failure.status is None:
                # The tool may have run, and a second request would run it again.
                raise failure
            tries += 1
            await self._pause(failure, tries, retry_after, deadline)

    async def new_session_id(self) -> str:
        """Return the id of a new session."""
        try:
            async with self._http.stream("POST", "/create_session", content=b"{}") as answer:
                if not answer.is_success:
                    raise _refusal(answer, await _body_of(answer))
                reader = ResultReader()
                await reader.read(answer)
        except httpx.HTTPError as error:
            raise _unreachable(error) from error
        if reader.task_id is None:
            raise OrsProtocolError("the ORS server did not send a session id")
        return reader.task_id

    async def _pause(
        self, failure: OrsError, tries: int, retry_after: str | None, deadline: float
    ) -> None:
        if not failure.retryable:
            raise failure
        is_starting = failure.status in _NOT_REACHED
        if tries >= _TRIES and not is_starting:
            raise failure
        pause = min(_MOST_PAUSE_SEC, 0.25 * 2 ** min(tries, 10))
        if retry_after is not None and retry_after.isdecimal():
            pause = min(_MOST_PAUSE_SEC, float(retry_after))
        if time.monotonic() + pause > deadline:
            raise failure
        await asyncio.sleep(pause)


class OrsSession:
    """One session: a world with tools. Use it in `async with`; it is then pinged until its end."""

    def __init__(
        self,
        client: OrsClient,
        environment: str,
        task_spec: Mapping[str, JsonValue],
        *,
        secrets: Mapping[str, str] | None = None,
        toolset: str | None = None,
    ) -> None:
        """Prepare the session. `toolset` is the name of more tools that the server knows."""
        self._toolset = toolset
        self._client = client
        self._environment = environment
        self._task_spec = dict(task_spec)
        self._secrets = dict(secrets or {})
        self._ping: asyncio.Task[None] | None = None
        self.sid: str | None = None
        """The id of the session, once it is open."""
        self.is_finished = False
        """Whether a tool has ended the episode. Later calls are refused, also by us."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Create the session, and start to ping it.

        Raises:
            OrsError: The server refuses the task.
        """
        self.sid = await self._client.new_session_id()
        body: dict[str, Any] = {"env_name": self._environment, "task_spec": self._task_spec}
        if self._toolset is not None:
            body["toolset_name"] = self._toolset
        try:
            await self._create({**body, "secrets": self._secrets} if self._secrets else body)
        except OrsError as error:
            # The server of ors-sdk reads secrets in the body, and the one of openreward refuses
            # such a body and reads the header, which we always send.
            if error.status != 422 or not self._secrets:
                raise
            await self._create(body)
        # The session owns the task: `close` ends it.
        self._ping = asyncio.create_task(self._keep_alive())  # noqa: TID251

    async def prompt(self) -> list[Block]:
        """Return the prompt. Wait until the session is ready."""
        return await self._read(_PROMPT, "prompt")

    async def tools(self) -> ToolList:
        """Return the tools of the session's task."""
        try:
            return await self._read(_TOOLS, "task_tools")
        except OrsSessionLostError as error:
            # A server without tools of tasks does not have the path.
            if error.status != 404:
                raise
            return await self._read(_TOOLS, "tools")

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolSuccess | ToolFailure:
        """Call a tool. After a finished episode, return a failure without a request.

        Raises:
            OrsError: The tool failed, or the session is lost.
        """
        if self.is_finished:
            return ToolFailure(error="the episode has finished", reason="episode_finished")
        text = await self._client.call(self._environment, self._sid(), name, arguments)
        result = _checked(_RESULT, text.encode("utf-8", "surrogatepass"))
        self.is_finished = isinstance(result, ToolSuccess) and result.output.finished
        return result

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore]:
        """Return one score for each candidate; see `OrsClient.score_group`."""
        await self.prompt()
        return await self._client.score_group(self._environment, self._sid(), candidates)

    async def close(self) -> None:
        """Delete the session. Idempotent; a server that does not answer is ignored."""
        if self._ping is not None:
            self._ping.cancel()
            await asyncio.wait({self._ping})
            self._ping = None
        sid, self.sid = self.sid, None
        if sid is None:
            return
        for path in ("/delete", "/delete_session"):
            # The server deletes an idle session after a while in any case.
            with suppress(OrsError):
                await self._client.read(_ANY, "POST", path, sid=sid)

    async def _create(self, body: Mapping[str, Any]) -> None:
        request = CreateRequest.model_validate(body)
        await self._client.read(
            _ANY,
            "POST",
            "/create",
            sid=self._sid(),
            body=request,
            headers={SECRETS_HEADER: _secrets_header(self._secrets)} if self._secrets else None,
            done_detail=_CREATED,
        )

    async def _read(self, kind: TypeAdapter[_T], path: str) -> _T:
        return await self._client.read(kind, "GET", f"/{self._environment}/{path}", sid=self._sid())

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(PING_SEC)
            # A call of the session reports a loss, with its reason.
            with suppress(OrsError):
                await self._client.read(_ANY, "POST", "/ping", sid=self._sid())

    def _sid(self) -> str:
        if self.sid is None:
            raise OrsSessionLostError("the session is not open")
        return self.sid


def _json(body: Model) -> bytes:
    # A key that is not set is left out: a server refuses keys that it does not know.
    return json.dumps(body.model_dump(mode="json", exclude_none=True)).encode()


def _headers(sid: str | None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        **({} if sid is None else {SESSION_HEADER: sid}),
        **(more or {}),
    }


def _secrets_header(secrets: Mapping[str, str]) -> str:
    content = json.dumps({name: {"value": value} for name, value in secrets.items()})
    return base64.b64encode(content.encode()).decode()


async def _body_of(answer: httpx.Response) -> bytes:
    """Read a body of a limited size, and close the response."""
    parts: list[bytes] = []
    size = 0
    try:
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MAX_BODY:
                raise OrsProtocolError(f"an answer of the ORS server is longer than {_MAX_BODY}")
    finally:
        await answer.aclose()
    return b"".join(parts)


def _refusal(answer: httpx.Response, content: bytes) -> OrsError:
    try:
        detail = _DETAIL.validate_json(content).detail
    except ValidationError:
        detail = answer.reason_phrase
    status = answer.status_code
    message = f"the ORS server answers with status {status}: {str(detail)[:_DETAIL_CHARS]}"
    if status in {404, 410} and SESSION_HEADER in answer.request.headers:
        return OrsSessionLostError(message, status=status)
    return OrsError(message, status=status, retryable=status in _NOT_REACHED)


def _unreachable(error: httpx.HTTPError) -> OrsUnreachableError:
    reason = str(error) or type(error).__name__
    return OrsUnreachableError(f"the ORS server does not answer: {reason}", retryable=True)


def _checked(kind: TypeAdapter[_T], content: bytes) -> _T:
    if len(content) > MAX_RESULT_BYTES:
        raise OrsProtocolError(f"an answer has {len(content)} bytes")
    try:
        return kind.validate_json(content)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        where = ".".join(map(str, faults[0]["loc"]))
        raise OrsProtocolError(
            f"an answer of the ORS server is malformed: {where}: {faults[0]['msg']}"
        ) from None
