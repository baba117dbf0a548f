"""One call, from its request to the last byte of its answer."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import aiohttp
from aiohttp import web
from benchflow_contracts import StoreError
from benchflow_contracts.pausing import running_timeout

from .body import declared_size, parse_body, read_body
from .documents import Document, DocumentError, read_document, write_document
from .draft import Draft
from .errors import DeferredError, RefusalKind, RefusedError
from .limits import Limits
from .proxied_call import ProxiedCall
from .route import Route
from .sse import Frame, SseError, SseReader
from .upstream import Client, error_message, policy_version, retry_after, shown_headers
from .wires import Wire

_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class AgentGoneError(Exception):
    """The agent stopped reading its answer."""


class Exchange:
    """Serves one request on a route, in one wire."""

    def __init__(
        self,
        route: Route,
        wire: Wire,
        request: web.BaseRequest,
        client: Client,
        limits: Limits,
        *,
        path_fields: Document | None = None,
    ) -> None:
        """`path_fields` are fields of the request that are in its path instead of its body."""
        self._route = route
        self._wire = wire
        self._request = request
        self._client = client
        self._limits = limits
        self._path_fields = path_fields or {}
        self._response: web.StreamResponse | None = None
        self._proxied: ProxiedCall | None = None
        # The route may get another upstream while this call is in flight.
        self._upstream = route.upstream
        self._unsent = bytearray()
        """The part of a streamed answer that waits for the end of a pause."""

    async def run(self) -> web.StreamResponse:
        """Answer the request. Each call is recorded, also a failed one.

        An invalid body is recorded as an empty request.

        Raises:
            RefusedError: The record of the rollout is full.
            asyncio.CancelledError: The agent closed the connection, or the route was closed.
        """
        self._route.admit()
        async with self._route.request_bytes.reserve(declared_size(self._request, self._limits)):
            return await self._run()

    async def _run(self) -> web.StreamResponse:
        try:
            raw = await read_body(self._request, self._limits)
            body = await parse_body(raw, self._limits, self._route.parsing)
        except RefusedError as refused:
            return await self._refuse(self._route.begin(self._wire.api, {}, b"{}"), refused)
        text = _with(raw, body, self._path_fields)
        draft = self._route.begin(self._wire.api, {**body, **self._path_fields}, text)
        # While the upstream answers, only the text of the request stays in memory.
        del body, text
        try:
            return await self._serve(draft, raw)
        except DeferredError:
            body = self._wire.refusal("upstream", "the rollout is being forked; try again")
            return await self._send_json(503, body, {"x-should-retry": "true"})
        except RefusedError as refused:
            return await self._refuse(draft, refused)
        except StoreError as error:
            return await self._refuse(draft, RefusedError("internal", 500, str(error)))
        except (asyncio.CancelledError, AgentGoneError) as error:
            self._cut(draft)
            raise asyncio.CancelledError from error
        except Exception as error:  # noqa: BLE001 - the last boundary: no call is lost
            message = f"the gateway failed ({type(error).__name__})"
            return await self._refuse(draft, RefusedError("internal", 500, message))

    async def _serve(self, draft: Draft, raw: bytes) -> web.StreamResponse:
        if self._route.replay(draft):
            draft.drop_request()
            return await self._reply(draft, {})
        await self._route.pass_gate(draft)
        await self._route.pause.wait_running()
        upstream = self._upstream = self._route.upstream
        proxied = self._proxied = ProxiedCall(
            self._wire, upstream, draft.request, raw, override=self._route.override_of(draft.id)
        )
        draft.drop_request()
        draft.forward(proxied)
        self._route.charge(draft, upstream)
        draft.policy_version = upstream.policy_version
        url = upstream.url(proxied.path, proxied.back)
        if proxied.back is self._wire and not url.query_string:
            url = url.with_query(self._request.rel_url.query)
        headers = upstream.headers(self._request.headers, proxied.back)
        async with self._client.call("POST", url, headers, proxied.data) as answer:
            self._route.note_answer(upstream.endpoint.url, answer.status, retry_after(answer))
            draft.policy_version = policy_version(answer) or upstream.policy_version
            if answer.status != 200:
                return await self._pass_error(draft, answer)
            if answer.content_type == "text/event-stream":
                return await self._stream(draft, proxied, answer)
            body = _upstream_document(upstream.without_keys(await self._client.read(answer)))
            draft.read_answer(proxied, body)
            draft.response = _translate(proxied, body)
            self._note_end_version(draft)
            return await self._reply(draft, shown_headers(answer))

    async def _reply(self, draft: Draft, headers: Mapping[str, str]) -> web.StreamResponse:
        """Record a whole answer, then send it."""
        assert draft.response is not None
        draft.status = 200
        self._route.record(draft)
        if not draft.request.get("stream"):
            return await self._send_json(200, draft.response, headers)
        await self._open(headers)
        events = self._wire.explode(draft.response)
        await self._write(b"".join(event.encode() for event in events))
        return await self._close()

    async def _stream(
        self, draft: Draft, proxied: ProxiedCall, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Forward a stream as it arrives, but send its end only after the call was recorded."""
        is_stream = bool(draft.request.get("stream"))
        if is_stream:
            draft.status = 200
            await self._open(shown_headers(answer))
        withheld: list[bytes] = []
        async for frames in self._frames(answer):
            sent_now: list[bytes] = []
            for frame in frames:
                data = _forward(proxied, self._clean(frame))
                (withheld if proxied.state.ending or not is_stream else sent_now).append(data)
            await self._write(b"".join(sent_now))
        withheld.append(proxied.finish() if proxied.state.ending else b"")
        rest = b"".join(withheld)
        if (failure := self._note_stream(draft, proxied)) is not None:
            rest = self._upstream.redact(rest.decode(errors="replace")).encode()
            if not is_stream or proxied.back is not self._wire:
                raise failure
            draft.error = failure.message
        if not is_stream:
            return await self._reply(draft, shown_headers(answer))
        self._route.record(draft)
        await self._write(rest)
        return await self._close()

    def _note_stream(self, draft: Draft, proxied: ProxiedCall) -> RefusedError | None:
        """Store the streamed answer in the draft; return the upstream's error, if any."""
        state = proxied.state
        body = state.body()
        if state.failure is not None:
            draft.read_partial_answer(proxied)
            reason = self._upstream.redact(state.failure)
            return RefusedError("upstream", 502, f"the model endpoint: {reason}")
        if body is None or not state.ending:
            draft.read_partial_answer(proxied)
            raise RefusedError("upstream", 502, "the model's answer broke off")
        draft.read_answer(proxied, body)
        draft.response = proxied.streamed()
        self._note_end_version(draft)
        return None

    def _note_end_version(self, draft: Draft) -> None:
        """Note the weights at the end of the call, if the engine got new ones meanwhile."""
        now, began = self._route.upstream, self._upstream
        is_engine = (now.endpoint.url, now.model) == (began.endpoint.url, began.model)
        if draft.end_policy_version is None and is_engine and now is not began:
            draft.end_policy_version = now.policy_version

    def _clean(self, frame: Frame) -> Frame:
        clean = self._upstream.without_keys(frame.raw)
        return frame if clean is frame.raw else Frame.parse(clean)

    async def _frames(self, answer: aiohttp.ClientResponse) -> AsyncIterator[list[Frame]]:
        """Yield the frames of one piece of the stream."""
        reader = SseReader(self._limits.event_bytes)
        total = 0
        try:
            async for piece in answer.content.iter_any():
                total += len(piece)
                if total > self._limits.response_bytes:
                    raise RefusedError("upstream", 502, "the model's answer is too long")
                yield list(reader.feed(piece))
            yield list(reader.finish())
        except SseError as error:
            raise RefusedError("upstream", 502, f"the model endpoint sent {error}") from error

    async def _pass_error(self, draft: Draft, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """Forward an error of the upstream in the agent's wire."""
        text = (await self._client.read(answer)).decode(errors="replace")
        text = self._upstream.redact(text)
        status = answer.status if answer.status >= 400 else 502
        assert self._proxied is not None
        try:
            body = read_document(text)
        except DocumentError:
            body = {}
        message = error_message(body) if body else f"the model endpoint answered {answer.status}"
        if not body or self._proxied.back is not self._wire:
            body = self._wire.refusal("upstream", message)
        draft.status, draft.response, draft.error = status, body, f"{answer.status}: {message}"
        self._route.record(draft)
        return await self._send_json(status, body, shown_headers(answer))

    async def _refuse(self, draft: Draft, refused: RefusedError) -> web.StreamResponse:
        """Record a failed call, then send the agent the reason."""
        has_started = self._response is not None
        draft.status = 200 if has_started else refused.status
        draft.error = f"{refused.kind}: {refused.message}"
        if refused.kind == "upstream" and self._proxied is not None and draft.response is None:
            draft.read_partial_answer(self._proxied)
        try:
            self._route.record(draft)
        except StoreError as error:
            refused = RefusedError("internal", 500, str(error))
        except RefusedError as full:
            refused = full
        if not has_started:
            return await send_refusal(self._request, self._wire, refused)
        await self._write(self._wire.refusal_event(refused.kind, refused.message).encode())
        return await self._close()

    def _cut(self, draft: Draft) -> None:
        draft.error = "the route was closed" if self._route.closed else "the agent went away"
        if self._proxied is not None and draft.response is None:
            draft.read_partial_answer(self._proxied)
            if draft.charged:
                draft.estimate_input(self._proxied)
        with suppress(StoreError, RefusedError):  # the route reports this error
            self._route.record(draft)

    async def _open(self, headers: Mapping[str, str]) -> None:
        response = web.StreamResponse(headers={**headers, **_STREAM})
        await response.prepare(self._request)
        self._response = response

    async def _write(self, data: bytes) -> None:
        self._unsent += data
        # The upstream must not wait for a paused agent, so its answer is read on.
        if not self._unsent or self._route.pause.is_paused:
            return
        assert self._response is not None
        data = bytes(self._unsent)
        self._unsent.clear()
        try:
            async with running_timeout(self._limits.write_sec, self._route.pause):
                await self._response.write(data)
        except (ConnectionError, TimeoutError) as error:
            raise AgentGoneError from error

    async def _close(self) -> web.StreamResponse:
        assert self._response is not None
        await self._route.pause.wait_running()
        await self._write(b"")
        try:
            async with running_timeout(self._limits.write_sec, self._route.pause):
                await self._response.write_eof()
        except (ConnectionError, TimeoutError) as error:
            raise AgentGoneError from error
        return self._response

    async def _send_json(
        self, status: int, body: Document, headers: Mapping[str, str]
    ) -> web.StreamResponse:
        await self._route.pause.wait_running()
        try:
            async with running_timeout(self._limits.write_sec, self._route.pause):
                return await send_json(self._request, status, body, headers)
        except (ConnectionError, TimeoutError) as error:
            raise AgentGoneError from error


async def send_json(
    request: web.BaseRequest, status: int, body: Document, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send a document, and wait until it is written."""
    data = write_document(body)
    response = web.Response(
        body=data, status=status, headers=headers, content_type="application/json"
    )
    await response.prepare(request)
    await response.write_eof()
    return response


async def send_refusal(
    request: web.BaseRequest, wire: Wire, refused: RefusedError
) -> web.StreamResponse:
    """Send an error in the agent's wire. A header tells clients not to retry final refusals."""
    no_retry: set[RefusalKind] = {
        "budget",
        "diverged",
        "closed",
        "invalid",
        "too_large",
        "unauthorized",
    }
    headers = {"x-should-retry": "false"} if refused.kind in no_retry else {}
    body = wire.refusal(refused.kind, refused.message)
    return await send_json(request, refused.status, body, headers)


def _with(raw: bytes, body: Document, path_fields: Document) -> bytes:
    """Return the text of a request with the fields of its path."""
    if not path_fields:
        return raw
    if not body or path_fields.keys() & body.keys():
        return write_document({**body, **path_fields})
    return raw.rstrip()[:-1] + b"," + write_document(path_fields)[1:]


def _upstream_document(data: bytes) -> Document:
    try:
        return read_document(data)
    except DocumentError as error:
        message = f"the model endpoint sent an invalid answer: {error}"
        raise RefusedError("upstream", 502, message) from error


def _translate(proxied: ProxiedCall, body: Document) -> Document:
    try:
        return proxied.translate_body(body)
    except DocumentError as error:
        raise RefusedError("upstream", 502, f"the model endpoint sent {error}") from error


def _forward(proxied: ProxiedCall, frame: Frame) -> bytes:
    try:
        return proxied.forward(frame)
    except DocumentError as error:
        raise RefusedError("upstream", 502, f"the model endpoint sent {error}") from error
