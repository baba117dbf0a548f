"""The client against a service that answers late, wrongly, twice or not at all."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from email.utils import formatdate
from typing import Any

import httpx
import pytest
from benchflow_contracts import UsageError
from benchflow_serve_client import (
    BlockingServeClient,
    ModelEndpoint,
    PolicyUpdate,
    RetryPolicy,
    RolloutRequest,
    ServeClient,
    ServiceBusyError,
    ServiceConflictError,
    ServiceError,
    ServiceFailedError,
    ServiceNotFoundError,
    ServiceRefusedError,
    ServiceTokenError,
    ServiceUnreachableError,
)
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

URL = "http://service.test:8643"
FAST = RetryPolicy(total_sec=20, first_sec=0.001, most_sec=0.002)
STATUS: dict[str, Any] = {"id": "r1", "state": "queued", "task": "t", "created_at": 1.0}
Answer = Callable[[httpx.Request], httpx.Response]


class Service(httpx.AsyncBaseTransport):
    """Gives one answer after another, and the last one again."""

    def __init__(self, *answers: Answer | httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


def client(service: Service, retry: RetryPolicy = FAST) -> ServeClient:
    return ServeClient(URL, "token-canary", retry=retry, transport=service)


def answer(status: int = 200, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.Response(
        status, json=body, headers={k.replace("_", "-"): headers[k] for k in headers}
    )


def problem(status: int, **headers: str) -> httpx.Response:
    body = {"type": "SomeError", "message": "it is so", "hint": "do this", "where": "rollout.task"}
    return answer(status, body, **headers)


def test_a_submission_that_was_not_answered_is_sent_again_with_the_same_key() -> None:
    cut = httpx.ReadError("the connection was cut")
    service = Service(cut, answer(503), answer(202, STATUS))
    found = asyncio.run(client(service).submit(RolloutRequest(task="t")))
    assert found.id == "r1"
    keys = {each.headers["idempotency-key"] for each in service.requests}
    assert len(service.requests) == 3
    assert len(keys) == 1


def test_an_acknowledgement_is_complete_when_its_result_is_deleted() -> None:
    service = Service(httpx.ReadError("the server was killed"), problem(404))
    asyncio.run(client(service).acknowledge("r1"))
    assert [each.url.path for each in service.requests] == ["/v1/rollouts/r1/ack"] * 2
    with pytest.raises(ServiceConflictError):
        asyncio.run(client(Service(problem(409))).acknowledge("r1"))


def test_two_submissions_have_two_keys_unless_the_caller_gives_one() -> None:
    service = Service(answer(202, STATUS))

    async def scenario() -> None:
        async with client(service) as serve:
            for key in (None, None, "mine", "mine"):
                await serve.submit(RolloutRequest(task="t"), key=key)

    asyncio.run(scenario())
    first, second, *own = (each.headers["idempotency-key"] for each in service.requests)
    assert first != second
    assert own == ["mine", "mine"]


def test_secrets_are_in_the_body_and_nowhere_else(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = ModelEndpoint(url="http://gpu:8000/v1", model="m", api_key=SecretStr("key-canary"))
    service = Service(problem(400))

    async def scenario() -> None:
        async with client(service) as serve:
            with pytest.raises(ServiceRefusedError) as caught:
                await serve.update_policy("p", PolicyUpdate(version="1", endpoint=endpoint))
            shown = repr(serve) + repr(serve.connection) + repr(caught.value) + str(caught.value)
            assert "canary" not in shown

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    (request,) = service.requests
    assert json.loads(request.content)["endpoint"]["api_key"] == "key-canary"
    assert request.headers["authorization"] == "Bearer token-canary"
    assert "canary" not in caplog.text


def test_only_what_the_caller_set_is_sent() -> None:
    service = Service(answer(202, STATUS))
    request = RolloutRequest(task="t", sampling={"stop": ["a", "b"]}, priority=0)
    asyncio.run(client(service).submit(request))
    body = json.loads(service.requests[0].content)
    assert body == {"task": "t", "sampling": {"stop": ["a", "b"]}, "priority": 0}


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, ServiceRefusedError),
        (401, ServiceTokenError),
        (404, ServiceNotFoundError),
        (409, ServiceConflictError),
        (413, ServiceRefusedError),
        (500, ServiceFailedError),
    ],
)
def test_a_refusal_is_a_typed_error_and_is_not_sent_again(
    status: int, error: type[ServiceError]
) -> None:
    service = Service(problem(status))
    with pytest.raises(error, match=r"rollout\.task: it is so") as caught:
        asyncio.run(client(service).submit(RolloutRequest(task="t")))
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.kind) == (status, "SomeError")
    assert caught.value.hint == "do this"
    assert len(service.requests) == 1


@given(st.binary(max_size=400), st.sampled_from([400, 404, 500]))
def test_the_body_of_an_error_may_be_anything(body: bytes, status: int) -> None:
    service = Service(httpx.Response(status, content=body))
    with pytest.raises(ServiceError) as caught:
        asyncio.run(client(service).status("r1"))
    assert caught.value.status == status
    assert str(caught.value).isprintable()


@given(st.binary(max_size=200))
def test_a_success_with_another_body_is_an_error(body: bytes) -> None:
    with pytest.raises(ServiceFailedError, match="not a RolloutStatus"):
        asyncio.run(client(Service(httpx.Response(200, content=body))).status("r1"))


def test_retry_after_is_the_least_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    later = formatdate(4102444800, usegmt=True)  # The year 2100 is later than any retry.
    service = Service(problem(429, retry_after="7"), answer(202, STATUS))
    asyncio.run(client(service).submit(RolloutRequest(task="t")))
    assert len(pauses) == 1
    assert 7 <= pauses[0] <= 7.002

    with pytest.raises(ServiceBusyError) as caught:
        asyncio.run(client(Service(problem(429, retry_after=later))).status("r1"))
    assert len(pauses) == 1
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 3600


@pytest.mark.parametrize("value", ["", "soon", "nan", "inf", "-3", "Mon, 99 Foo 2026 99:99:99 GMT"])
def test_a_wrong_retry_after_is_not_obeyed(value: str) -> None:
    service = Service(problem(429, retry_after=value), answer(200, STATUS))
    asyncio.run(asyncio.wait_for(client(service).status("r1"), 10))
    assert len(service.requests) == 2


def test_pauses_grow_to_a_limit_and_are_random() -> None:
    policy = RetryPolicy(first_sec=0.5, most_sec=4)
    for tries, most in [(1, 0.5), (2, 1), (3, 2), (4, 4), (5, 4), (5000, 4)]:
        pauses = {policy.pause_sec(tries) for _ in range(50)}
        assert max(pauses) <= most
        assert len(pauses) > 40


def test_the_client_gives_up_after_its_time() -> None:
    service = Service(httpx.ConnectError("refused"))
    with pytest.raises(ServiceUnreachableError, match="refused"):
        asyncio.run(client(service, RetryPolicy(total_sec=0)).status("r1"))
    assert len(service.requests) == 1


@pytest.mark.parametrize(
    "url", ["", "service:80", "ftp://x", "http://u:pw-canary@x", "http://[::1"]
)
def test_an_address_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServeClient(url)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("token", ["canary\nX-Other: 1", "canär", "a canary", "canary\0"])
def test_a_token_that_is_not_a_header_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServeClient(URL, token)
    assert "can" not in str(caught.value)


def test_a_name_cannot_leave_its_place_in_the_path() -> None:
    service = Service(answer(200, STATUS))
    asyncio.run(client(service).status("../policies/p?x=#"))
    assert service.requests[0].url.raw_path == b"/v1/rollouts/..%2Fpolicies%2Fp%3Fx%3D%23"


# Streams


class Cut(httpx.AsyncByteStream):
    """Sends some chunks, then ends or breaks."""

    def __init__(self, chunks: list[bytes], *, breaks: bool) -> None:
        self._chunks = chunks
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk
        if self._breaks:
            raise httpx.ReadError("the connection was cut")


KINDS = ["queued", "running", "leaf", "leaf", "swapped", "leaf", "ended"]


def messages(after: int) -> bytes:
    events = [{"id": n, "kind": kind, "at": 1.0} for n, kind in enumerate(KINDS, 1) if n > after]
    shown = (f"id: {e['id']}\nevent: {e['kind']}\ndata: {json.dumps(e)}\n\n" for e in events)
    return (": ping\n\n" + "".join(shown)).encode()


def streaming(cuts: Iterator[int | None], *, repeats: bool = False) -> Answer:
    """Answer with the events after `Last-Event-ID`, up to a number of bytes."""

    def respond(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return answer(200, {**STATUS, "state": "running"})
        after = 0 if repeats else int(request.headers.get("last-event-id", "0"))
        text = messages(after)
        cut = next(cuts, None)
        sent = text if cut is None else text[: cut % (len(text) + 1)]
        pieces = [sent[at : at + 7] for at in range(0, len(sent), 7)]
        stream = Cut(pieces, breaks=cut is not None and cut % 2 == 0)
        return httpx.Response(200, stream=stream, headers={"content-type": "text/event-stream"})

    return respond


async def read(service: Service, after: int = 0) -> list[int]:
    async with client(service) as serve:
        return [event.id async for event in serve.events("r1", after=after)]


@given(st.lists(st.integers(0, 900), max_size=8), st.booleans(), st.integers(0, 6))
def test_events_of_broken_streams_are_complete_and_each_comes_once(
    cuts: list[int], repeats: bool, after: int
) -> None:
    service = Service(streaming(iter(cuts), repeats=repeats))
    assert asyncio.run(read(service, after)) == list(range(after + 1, 8))


def test_a_stream_that_is_cut_after_hours_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    answer_to = streaming(iter([None] * 9))

    def respond(request: httpx.Request) -> httpx.Response:
        # Each connection is cut after an hour, and the first nine have no event.
        now[0] += 3600
        if request.url.path.endswith("/events") and len(service.requests) < 18:
            stream = Cut([b": ping\n\n"], breaks=len(service.requests) % 4 == 1)
            return httpx.Response(200, stream=stream, headers={"content-type": "text/event-stream"})
        return answer_to(request)

    async def scenario() -> list[int]:
        at_once = RetryPolicy(total_sec=20, first_sec=0, most_sec=0)
        async with client(service, at_once) as serve:
            return [event.id async for event in serve.events("r1")]

    service = Service(respond)
    assert asyncio.run(scenario()) == list(range(1, 8))


def test_a_service_that_closes_each_stream_is_an_error() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, content=b"", headers={"content-type": "text/event-stream"})
        return answer(200, {**STATUS, "state": "running"})

    async def scenario() -> None:
        short = RetryPolicy(total_sec=0.05, first_sec=0.01, most_sec=0.01)
        async with client(Service(respond), short) as serve:
            with pytest.raises(ServiceFailedError, match="closes each stream"):
                async for _ in serve.events("r1"):
                    pass

    asyncio.run(scenario())


def test_a_stream_after_its_last_event_ends() -> None:
    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            assert request.headers["last-event-id"] == "7"
            return httpx.Response(200, content=b"", headers={"content-type": "text/event-stream"})
        return answer(200, {**STATUS, "state": "ended"})

    assert asyncio.run(asyncio.wait_for(read(Service(respond), after=7), 10)) == []


def test_an_event_that_was_skipped_is_an_error() -> None:
    text = (
        b'id: 1\ndata: {"id":1,"kind":"queued","at":1}\n\ndata: {"id":3,"kind":"leaf","at":1}\n\n'
    )
    service = Service(
        httpx.Response(200, content=text, headers={"content-type": "text/event-stream"})
    )
    with pytest.raises(ServiceFailedError, match="skip from 1 to 3"):
        asyncio.run(read(service))


def test_a_stream_of_another_type_or_a_refused_one_is_an_error() -> None:
    with pytest.raises(ServiceFailedError, match="text/event-stream"):
        asyncio.run(read(Service(answer(200, {}))))
    with pytest.raises(ServiceNotFoundError, match="it is so"):
        asyncio.run(read(Service(problem(404))))


def test_wait_follows_the_events_and_returns_the_status() -> None:
    service = Service(streaming(iter([])))
    assert asyncio.run(client(service).wait("r1")).id == "r1"


def test_the_blocking_client_has_every_method_of_the_other_one() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(BlockingServeClient) == methods(ServeClient)

    service = Service(streaming(iter([31, 200])))
    with BlockingServeClient(URL, retry=FAST, transport=service) as serve:
        assert [event.id for event in serve.events("r1")] == list(range(1, 8))
        assert serve.status("r1").state == "running"
        stream = serve.events("r1")
        next(stream)
        stream.close()
    serve.close()
