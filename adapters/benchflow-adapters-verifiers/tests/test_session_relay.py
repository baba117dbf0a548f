"""Calls of verifiers' tool servers reach the session of their secret, and no other one."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import session_parts
from benchflow_adapters_verifiers.session_relay import SessionRelay
from benchflow_contracts import Task
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import BlockingSessions


@pytest.fixture(scope="module")
def relay() -> Iterator[SessionRelay]:
    served = SessionRelay(BlockingSessions(session_parts.config()))
    yield served
    served.close()
    served.close()


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return runnable_task(session_parts.task_at(tmp_path_factory.mktemp("relay")))


def call(relay: SessionRelay, secret: str, body: Any, **more: str) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {secret}", **more}
    answer = httpx.post(relay.url, content=body, headers=headers, timeout=30)
    found: dict[str, Any] = answer.json()
    return answer.status_code, found


WRITE = b'{"name": "write_file", "arguments": {"path": "/workspace/a", "content": "x"}}'


def test_a_call_is_made_in_the_session_of_its_secret(relay: SessionRelay, task: Task) -> None:
    secret, session = relay.open(task)
    status, answer = call(relay, secret, b'{"name": "unheard_of", "arguments": {}}')
    assert (status, answer["failed"]) == (200, True)
    assert "unknown tool" in answer["text"]
    assert session.session.calls == 1
    outcome = relay.finish(secret, "done")
    assert (outcome.reward, outcome.unscored) == (0.5, None)
    assert call(relay, secret, WRITE)[0] == 401


def test_a_session_that_the_model_submitted_keeps_its_verdict(
    relay: SessionRelay, task: Task
) -> None:
    secret, _ = relay.open(task)
    assert call(relay, secret, b'{"name": "submit", "arguments": {"message": "done"}}')[0] == 200
    status, answer = call(relay, secret, WRITE)
    assert (status, answer["failed"]) == (200, True)
    assert relay.finish(secret, "again").reward == 0.5


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"name": "bash"}', 400),
        (b"[" * 100_000, 400),
        (b"\xff", 400),
        (b" " * (8 * 2**20 + 1), 413),
    ],
)
def test_a_malformed_call_is_refused(
    relay: SessionRelay, task: Task, body: bytes, status: int
) -> None:
    secret, session = relay.open(task)
    assert call(relay, secret, body)[0] == status
    assert session.session.calls == 0
    relay.finish(secret, "")


def test_a_request_without_a_secret_reaches_no_session(relay: SessionRelay) -> None:
    assert call(relay, "guess", WRITE)[0] == 401
    assert httpx.post(relay.url, content=WRITE).status_code == 401
    assert httpx.get(relay.url).status_code == 501
