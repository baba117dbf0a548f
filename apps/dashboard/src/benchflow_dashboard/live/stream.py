"""The routes of the live streams: `/live`, and `/r/{rollout}/live` for one rollout."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

from benchflow_contracts import UsageError
from litestar import Request, get
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, TooManyRequestsException
from litestar.params import FromPath
from litestar.response import ServerSentEvent

from benchflow_dashboard.index import Index
from benchflow_dashboard.pages.page import find_one
from benchflow_dashboard.security.access import access_of, user_of
from benchflow_dashboard.security.remote import limit_key

from .frames import HEARTBEAT, EncodedFrame, encode_event, encode_id, encode_retry, read_id
from .hub import TOPICS, LiveHub, StreamSlot
from .reader import LiveReader, Subscription

_CHECK_SEC: Final = 1.0
"""How often an open stream checks that its user may still read."""
_BEAT_SEC: Final = 15.0
_RETRY_MS: Final = 500
_MAX_ROLLOUTS: Final = 32
_MAX_NAME: Final = 300

LiveRequest = Request[Any, Any, Any]


@get("/live", include_in_schema=False)
async def stream_changes(request: LiveRequest, live: NamedDependency[LiveHub]) -> ServerSentEvent:
    """Stream changes of the topics `on` and the events of the rollouts `r`.

    The id of an event has the `seq` of each rollout, in the order of the query. `Last-Event-ID` or
    `since` resumes.
    """
    query = request.query_params
    rollouts, topics = query.getall("r", []), frozenset(query.getall("on", []))
    if not topics <= set(TOPICS):
        raise UsageError(f"{sorted(topics - set(TOPICS))} are not topics", hint=f"use {TOPICS}")
    if not topics and not rollouts:
        raise UsageError("the query names neither a topic nor a rollout", hint="add on= or r=")
    return _respond(request, live, topics, rollouts, query.get("since", ""))


@get("/r/{rollout:str}/live", include_in_schema=False)
async def stream_rollout(
    request: LiveRequest,
    live: NamedDependency[LiveHub],
    index: NamedDependency[Index],
    rollout: FromPath[str],
) -> ServerSentEvent:
    """Stream the events of one rollout. The id of an event is its `seq` in the log."""
    entry = await asyncio.to_thread(find_one, index, rollout)
    since = request.query_params.get("since", "")
    return _respond(request, live, frozenset(), [entry.id], since)


def _respond(
    request: LiveRequest, live: LiveHub, topics: frozenset[str], rollouts: list[str], since: str
) -> ServerSentEvent:
    if len(rollouts) > _MAX_ROLLOUTS or any(len(name) > _MAX_NAME for name in rollouts):
        raise UsageError(f"a stream has at most {_MAX_ROLLOUTS} rollouts")
    if len(set(rollouts)) < len(rollouts):
        raise UsageError("the query names a rollout twice")
    if live.is_full:
        raise HTTPException(
            status_code=503, detail="too many open streams", headers={"Retry-After": "10"}
        )
    positions = read_id(request.headers.get("last-event-id") or since, len(rollouts))
    subscription = Subscription(topics, rollouts, positions or (None,) * len(rollouts))
    access = access_of(request)
    user = user_of(request).name if access.has_auth else ""
    slot = live.take_slot(user, limit_key(access.remote(request)))
    if slot is None:
        raise TooManyRequestsException(
            "too many open streams of this user or address", headers={"Retry-After": "10"}
        )

    async def is_allowed() -> bool:
        # The database of sessions may be remote, and must not hold up other streams.
        return not access.has_auth or await asyncio.to_thread(access.may_continue, request)

    frames = stream_frames(live, subscription, is_allowed, slot=slot)
    return ServerSentEvent(frames, headers={"Cache-Control": "no-store"})


async def stream_frames(
    live: LiveHub,
    subscription: Subscription,
    is_allowed: Callable[[], Awaitable[bool]],
    *,
    check_sec: float = _CHECK_SEC,
    beat_sec: float = _BEAT_SEC,
    slot: StreamSlot | None = None,
) -> AsyncGenerator[EncodedFrame]:
    """Yield the frames of one stream until the server stops, or the user may not read any more.

    `slot` is held as long as the stream may go on.
    """
    reader = await live.subscribe(subscription)
    try:
        yield EncodedFrame(encode_retry(_RETRY_MS) + _with_id(reader, live.snapshot(reader)))
        sent = time.monotonic()
        while not reader.is_closed:
            await reader.wait(check_sec)
            if not await is_allowed():
                yield EncodedFrame(encode_event("end", {"reason": "session"}))
                return
            if (body := _next(live, reader)) is not None:
                yield EncodedFrame(body)
                sent = time.monotonic()
            elif time.monotonic() - sent >= beat_sec:
                yield EncodedFrame(HEARTBEAT)
                sent = time.monotonic()
    finally:
        live.remove(reader)
        del slot


def _next(live: LiveHub, reader: LiveReader) -> bytes | None:
    if reader.is_behind:
        return _with_id(reader, live.snapshot(reader))
    delivery = reader.pop()
    return None if delivery is None else _with_id(reader, delivery.body)


def _with_id(reader: LiveReader, body: bytes) -> bytes:
    """Put the id in front. Only these few bytes are the reader's own."""
    return encode_id(reader.positions.values()) + body if reader.positions else body
