"""Requests to each route: from the OpenAPI description, hostile bodies, and inline tasks."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import requests
import schemathesis
from benchflow_serve import RolloutService, create_app
from litestar.testing import TestClient
from served_rollouts import TASK, settings_at

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from litestar import Litestar

ADDRESS = "http://127.0.0.1:8643"
JSON = {"Content-Type": "application/json"}
SETTINGS = hypothesis.settings(
    max_examples=15,
    database=None,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
INLINE = {
    "task.toml": {"text": 'name = "inline/one"\n'},
    "instruction.md": {"text": "Do nothing.\n"},
    "tests/test.sh": {"text": "#!/bin/sh\n", "executable": True},
}


@pytest.fixture
def client(tmp_path: Path) -> Generator[TestClient[Litestar]]:
    settings = settings_at(tmp_path, slots=1, queue=3, allow_inline_tasks=True, max_body_mb=1)
    app = create_app(RolloutService(settings))
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        yield client


def submit(client: TestClient[Litestar], task: object, **fields: Any) -> Any:
    return client.post("/v1/rollouts", json={"task": task, **fields})


@pytest.mark.timeout(240)
def test_each_route_keeps_its_description(client: TestClient[Litestar]) -> None:
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    schema = schemathesis.openapi.from_dict(document)
    operations = [each.ok() for each in schema.get_all_operations()]

    def check(case: Any) -> None:
        made = requests.Request(**case.as_transport_kwargs(base_url=ADDRESS)).prepare()
        answer = client.request(
            str(made.method), str(made.url), headers=dict(made.headers), content=made.body
        )
        assert answer.status_code < 500, (answer.request.url, answer.text)
        if answer.status_code >= 400:
            assert set(answer.json()) == {"type", "message", "hint", "where"}

    for operation in operations:
        if not operation.path.endswith("/events"):
            SETTINGS(hypothesis.given(operation.as_strategy())(check))()
    assert len(operations) >= 15


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"task": "bench/served", "agent": "\xff"}',
        b'{"task": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"task": "bench/served", "deadline_sec": 1e999}',
        b'{"task": "bench/served", "priority": 99999999999999999999}',
        b'{"task": "bench/served", "sampling": {"messages": []}}',
        b'{"task": "../../etc"}',
        b'{"task": "bench/served", "unknown": 1}',
        b'{"task": "\\ud800"}',
        b'{"task": "bench/served", "endpoint": {"url": "http://u:p@h/", "model": "m"}}',
        b'{"task": "bench/served", "group": {"id": "g", "size": 5000, "index": 0}}',
    ],
)
def test_a_wrong_body_is_a_problem_and_not_a_fault(
    client: TestClient[Litestar], body: bytes
) -> None:
    answer = client.post("/v1/rollouts", content=body, headers=JSON)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["message"]


@pytest.mark.parametrize("name", ["p%0A", "%2e%2e", "p%00", "%ff"])
def test_a_name_that_is_not_plain_is_refused(client: TestClient[Litestar], name: str) -> None:
    update = {"version": "v", "endpoint": {"url": "http://127.0.0.1:9", "model": "m"}}
    for answer in (
        client.put(f"/v1/policies/{name}", json=update),
        client.get(f"/v1/rollouts/{name}"),
        client.get(f"/v1/groups/{name}"),
        client.get(f"/v1/jobs/{name}"),
    ):
        assert answer.status_code == 400, answer.text
        assert answer.json()["message"]
    assert client.get("/v1/policies").json() == []


def test_a_body_beyond_the_limit_is_refused(client: TestClient[Litestar]) -> None:
    body = json.dumps({"task": "x" * 2**21})
    answer = client.post("/v1/rollouts", content=body, headers=JSON)
    assert answer.status_code == 413


def test_a_full_queue_says_when_to_try_again(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, "hanging_agent", slots=1, queue=0)
    with TestClient(create_app(RolloutService(settings)), base_url=ADDRESS) as client:
        assert submit(client, TASK).status_code == 202
        refused = submit(client, TASK)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["type"] == "QueueFullError"


def test_a_parked_rollout_is_resumed_without_a_body(tmp_path: Path) -> None:
    settings = settings_at(tmp_path, "hanging_agent", slots=1)
    with TestClient(create_app(RolloutService(settings)), base_url=ADDRESS) as client:
        submit(client, TASK)
        path = f"/v1/rollouts/{submit(client, TASK).json()['id']}"
        assert client.delete(f"{path}?keep=checkpoint").json()["state"] == "parked"
        resumed = client.post(f"{path}/resume", headers={"Idempotency-Key": "k"})
        assert (resumed.status_code, resumed.json()["state"]) == (202, "queued")
        assert client.post(f"{path}/resume").status_code == 409
        assert client.post(f"{path}/resume", headers={"Idempotency-Key": "k"}).is_success


def test_an_inline_task_runs_from_the_directory_of_the_service(
    client: TestClient[Litestar], tmp_path: Path
) -> None:
    task = {"id": "one", "files": INLINE}
    given = submit(client, task)
    assert given.status_code == 202, given.text
    assert given.json()["task"] == "inline/one"
    [place] = (tmp_path / "serve/tasks").iterdir()
    assert (place / "tests/test.sh").read_text() == "#!/bin/sh\n"
    again = submit(client, task)
    assert again.json()["task_digest"] == given.json()["task_digest"]


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/x",
        "a/../../x",
        "a//b",
        "a/./b",
        "",
        "a\\b",
        "a\0b",
        "x" * 300,
        "a/" * 20 + "b",
    ],
)
def test_a_path_out_of_an_inline_task_is_refused(
    client: TestClient[Litestar], tmp_path: Path, path: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    refused = submit(client, {"id": "one", "files": {**INLINE, path: {"text": "x"}}})
    assert refused.status_code == 400, refused.text
    assert [p for p in sorted(tmp_path.rglob("*")) if p not in before] == []


def test_too_many_files_and_wrong_base64_are_refused(client: TestClient[Litestar]) -> None:
    many = {f"f{number}": {"text": ""} for number in range(1001)}
    assert submit(client, {"id": "one", "files": many}).status_code == 413
    wrong = {**INLINE, "b": {"base64": "?"}}
    assert submit(client, {"id": "one", "files": wrong}).status_code == 400
    both = {**INLINE, "a": {"text": "x"}, "a/b": {"text": "x"}}
    assert submit(client, {"id": "one", "files": both}).status_code == 400
    right = {**INLINE, "b": {"base64": base64.b64encode(b"\xff").decode()}}
    assert submit(client, {"id": "one", "files": right}).status_code == 202


def test_a_key_of_an_endpoint_is_never_on_disk_or_in_an_answer(
    client: TestClient[Litestar], tmp_path: Path
) -> None:
    secret = "sk-a-key-that-nobody-may-see"
    endpoint = {"url": "http://127.0.0.1:9/v1", "model": "m", "api_key": secret}
    given = submit(client, TASK, endpoint=endpoint)
    assert given.status_code == 202, given.text
    ident = given.json()["id"]
    with client.stream("GET", f"/v1/rollouts/{ident}/events") as stream:
        text = "".join(stream.iter_text())
    text += client.get(f"/v1/rollouts/{ident}/result").text + given.text
    assert secret not in text
    files = [path for path in (tmp_path / "serve").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secret.encode() in path.read_bytes()]
