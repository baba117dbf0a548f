"""Groups are sent once, in order, when the trainer has started and its queue has room."""

import json
from typing import Any

import httpx
import pytest
from benchflow_contracts import StoreError, UsageError
from benchflow_export.atropos_sender import AtroposSender, SentGroups

BODY: dict[str, Any] = {
    "tokens": [[1, 2], [1, 3]],
    "masks": [[-100, 2], [-100, 3]],
    "scores": [1.0, 0.0],
    "advantages": [[0.0, 1.0], [0.0, -1.0]],
    "inference_logprobs": [[1.0, -0.5], [1.0, -0.5]],
    "overrides": [{}, {"temperature": 1.0}],
    "group_overrides": {"group_size": 2},
}


class Server:
    """The answers of atroposlib's API server, and what it got."""

    def __init__(self, *, starts_after: int = 0, queue: list[int] | None = None) -> None:
        self.starts_after = starts_after
        self.queue = queue or []
        self.got: list[tuple[str, Any]] = []
        self.pauses: list[float] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else None
        if path == "/status":
            return httpx.Response(200, json={"queue_size": self.queue.pop(0) if self.queue else 0})
        self.got.append((path, body))
        if path == "/register-env":
            self.starts_after -= 1
            if self.starts_after >= 0:
                return httpx.Response(200, json={"status": "wait for trainer to start"})
            return httpx.Response(200, json={"status": "success", "env_id": 3})
        return httpx.Response(200, json={"status": "received"})

    def sender(self, **options: Any) -> AtroposSender:
        fields: dict[str, Any] = {"group_size": 2, "max_token_length": 4, "max_queue": 2}
        return AtroposSender(
            "http://trainer",
            transport=httpx.MockTransport(self.answer),
            sleep=self.pauses.append,
            **{**fields, **options},
        )

    @property
    def groups(self) -> list[Any]:
        return [body for path, body in self.got if path == "/scored_data"]


def test_a_sender_waits_for_the_trainer_and_for_room_and_disconnects() -> None:
    server = Server(starts_after=2, queue=[2, 5, 1])
    with server.sender() as sender:
        assert sender.send_all([BODY, BODY]) == SentGroups(groups=2, sequences=4)
    assert server.pauses == [0.2, 0.4, 0.2, 0.4]
    assert server.groups == [{**BODY, "env_id": 3}] * 2
    assert server.got[-1] == ("/disconnect-env", {"env_id": 3})
    assert server.got[0][1] == {
        "max_token_length": 4,
        "desired_name": "benchflow",
        "weight": 1.0,
        "group_size": 2,
    }


def test_a_group_that_would_hold_up_the_trainer_is_counted_and_not_sent() -> None:
    three = {**BODY, "tokens": [*BODY["tokens"], [1]]}
    long = {**BODY, "tokens": [[1, 2], [1, 2, 3, 4, 5]]}
    server = Server()
    with server.sender() as sender:
        assert sender.send_all([three, long]) == SentGroups(wrong_size=1, too_long=1)
    assert server.groups == []


def test_a_group_of_one_sequence_each_needs_advantages() -> None:
    server = Server()
    with server.sender(group_size=1) as sender:
        sent = sender.send_all([BODY, {**BODY, "advantages": None}])
    assert sent == SentGroups(groups=2, sequences=2, wrong_size=1)
    assert [(body["tokens"], body["advantages"]) for body in server.groups] == [
        ([[1, 2]], [[0.0, 1.0]]),
        ([[1, 3]], [[0.0, -1.0]]),
    ]
    assert {body["group_overrides"]["group_size"] for body in server.groups} == {1}


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(starts_after=999), "the trainer did not start within 5 s"),
        (Server(queue=[9] * 999), "stayed full within 5 s"),
    ],
)
def test_patience_ends(server: Server, message: str) -> None:
    sender = server.sender(patience_sec=5)
    with pytest.raises(StoreError, match=message), sender:
        sender.send_all([BODY])
    assert sum(server.pauses) <= 10
    assert server.groups == []


def test_a_server_that_fails_is_an_error_and_no_group_is_sent_twice() -> None:
    posts: list[str] = []

    def fail(request: httpx.Request) -> httpx.Response:
        posts.append(request.url.path)
        if request.url.path == "/scored_data":
            raise httpx.ReadTimeout("no answer")
        return Server().answer(request)

    transport = httpx.MockTransport(fail)
    sender = AtroposSender(
        "http://trainer", group_size=2, max_token_length=4, transport=transport, sleep=print
    )
    with pytest.raises(StoreError, match="no answer"), sender:
        sender.send_all([BODY])
    assert posts.count("/scored_data") == 1


def test_a_group_size_of_zero_is_refused() -> None:
    with pytest.raises(UsageError):
        AtroposSender("http://trainer", group_size=0, max_token_length=1)
