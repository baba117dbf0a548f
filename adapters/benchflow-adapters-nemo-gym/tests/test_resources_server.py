"""Our tasks as a resources server: seed, tools, MCP, verify, metrics."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_nemo_gym.descriptor import SessionDescriptor
from benchflow_adapters_nemo_gym.hostile_json import last_message
from benchflow_adapters_nemo_gym.metrics import aggregate_metrics
from benchflow_adapters_nemo_gym.resources_server import create_resources_app
from benchflow_adapters_nemo_gym.rows import (
    make_config,
    make_row,
    write_project,
    write_rows,
)
from benchflow_adapters_nemo_gym.server_parts import scored_row
from benchflow_contracts import Task, UsageError
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import SessionManager, ToolSpec
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar
from litestar.exceptions import HTTPException
from litestar.testing import TestClient
from session_parts import config, task_at  # type: ignore[import-untyped,unused-ignore]

SECRET = b"a secret of tests only"
COOKIE = "BenchFlow___tasks"
TOKEN = "X-NeMo-Gym-Session-Token"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return runnable_task(task_at(tmp_path))


@contextmanager
def serving(*tasks: Task, sandbox: str | None = None) -> Generator[TestClient[Litestar]]:
    app = create_resources_app(
        SessionManager.running(config(sandbox=sandbox)), tasks, secret=SECRET, name="tasks"
    )
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def row_of(task: Task) -> dict[str, Any]:
    return make_row(task, [ToolSpec("bash", "A shell.", {"type": "object"})])


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_a_session_is_seeded_played_and_graded_once(task: Task) -> None:
    row = row_of(task)
    with serving(task, sandbox="local") as client:
        seed = client.post("/seed_session", json=row)
        assert seed.status_code == 200
        descriptor = SessionDescriptor.model_validate(seed.json()["benchflow"])
        assert descriptor.topology == "env-sandboxed"
        assert client.cookies[COOKIE].partition(".")[0] in descriptor.model_dump_json()
        told = client.post("/bash", json={"command": "echo hello"})
        assert (told.status_code, told.text) == (200, "hello\n")
        # An agent that keeps only the cookies of the last response stays in its session.
        assert told.cookies[COOKIE] == seed.cookies[COOKIE]
        assert client.post("/bash", content=b"{").cookies[COOKIE] == seed.cookies[COOKIE]
        body: dict[str, Any] = row | {"response": {"output": []}, "_ng_task_index": 3}
        first, again = client.post("/verify", json=body), client.post("/verify", json=body)
        assert first.status_code == 200
        assert first.json() == again.json()
        assert first.json()["reward"] == 0.5
        assert first.json()["rollout_id"] == descriptor.rollout
        assert {key: first.json()[key] for key in body} == body
        late = client.post("/bash", json={"command": "true"})
        assert late.status_code == 410


def test_a_verified_session_makes_room_for_another_one(task: Task) -> None:
    manager = SessionManager.running(config(), most=1)
    app = create_resources_app(manager, [task], secret=SECRET, name="tasks")
    row = row_of(task)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        cookies: set[str] = set()
        for _ in range(3):
            assert client.post("/seed_session", json=row).status_code == 200
            cookies.add(client.cookies[COOKIE])
            assert client.post("/seed_session", json=row).status_code == 429
            assert client.post("/verify", json=row).json()["reward"] == 0.5
        assert len(cookies) == 3


def test_a_request_without_a_valid_cookie_is_refused_and_starts_no_session(task: Task) -> None:
    with serving(task) as client:
        client.post("/seed_session", json=row_of(task))
        token = client.post("/seed_session", json=row_of(task)).json()["mcp"]["headers"][TOKEN]
        for cookie in ("", "forged.value", token):
            client.cookies.clear()
            client.cookies.set(COOKIE, cookie)
            for path in ("/bash", "/verify"):
                reply = client.post(path, json=row_of(task))
                assert reply.status_code == 404
                assert "no valid cookie" in reply.json()["error"]


def test_mcp_and_cookie_lead_to_one_session(task: Task) -> None:
    with serving(task, sandbox="local") as client:
        seed = client.post("/seed_session", json=row_of(task)).json()
        headers = seed["mcp"]["headers"]
        assert seed["mcp"]["url_path"] == "/mcp"
        start = client.post("/mcp", json=rpc("initialize", protocolVersion="x"), headers=headers)
        assert start.json()["result"]["protocolVersion"] == "2025-06-18"
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert client.post("/mcp", json=note, headers=headers).status_code == 202
        tools = client.post("/mcp", json=rpc("tools/list"), headers=headers).json()["result"]
        assert {"bash", "submit"} <= {tool["name"] for tool in tools["tools"]}
        arguments = {"command": "echo by mcp > /tmp/f"}
        call = rpc("tools/call", name="bash", arguments=arguments)
        reply = client.post("/mcp", json=call, headers=headers).json()
        assert reply["result"]["isError"] is False
        assert client.post("/bash", json={"command": "cat /tmp/f"}).text == "by mcp\n"


def test_a_missing_or_forged_token_is_an_error_of_the_tool_and_not_of_http(task: Task) -> None:
    with serving(task) as client:
        client.post("/seed_session", json=row_of(task))
        for headers in ({}, {TOKEN: "forged.token"}, {TOKEN: client.cookies[COOKIE]}):
            call = rpc("tools/call", name="bash", arguments={"command": "true"})
            reply = client.post("/mcp", json=call, headers=headers)
            assert reply.status_code == 200
            assert reply.json()["result"]["isError"] is True
            listed = client.post("/mcp", json=rpc("tools/list"), headers=headers)
            assert "no valid mcp" in listed.json()["error"]["message"]


def test_the_errors_of_an_agent_are_texts_that_it_can_read(task: Task) -> None:
    with serving(task) as client:
        client.post("/seed_session", json=row_of(task))
        unknown = client.post("/unheard_of", json={})
        assert unknown.status_code == 422
        assert "unknown tool" in unknown.text
        assert client.post("/bash", json={"commando": 1}).status_code == 422
        assert client.post("/bash", content=b"[1]").status_code == 400
        assert client.post("/bash", content=b"{").status_code == 400
        assert client.post("/bash", content=b"[" * 100_000).status_code == 400


def test_the_token_and_the_messages_of_another_session_give_no_reward_here(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        write_task(tmp_path / name)
    tasks = [runnable_task(tmp_path / name) for name in ("a", "b")]
    with serving(*tasks, sandbox="local") as client:
        first = client.post("/seed_session", json=row_of(tasks[0])).json()
        client.cookies.clear()
        client.post("/seed_session", json=row_of(tasks[1]))
        arguments = {"command": "touch /tmp/stolen"}
        call = rpc("tools/call", name="bash", arguments=arguments)
        client.post("/mcp", json=call, headers=first["mcp"]["headers"])
        seen = client.post("/bash", json={"command": "ls /tmp/stolen"})
        assert seen.status_code == 422
        # A row of another task is refused, and a reward in the body is not read.
        assert client.post("/verify", json=row_of(tasks[0])).status_code == 400
        body = row_of(tasks[1]) | {"reward": 99.0, "rollout_id": "mine", "reward_components": {}}
        graded = client.post("/verify", json=body).json()
        assert graded["reward"] == 0.5
        assert graded["rollout_id"] not in {"mine", first["benchflow"]["identity"]["rollout"]}
        assert client.post("/verify", json=row_of(tasks[0])).status_code == 400


def test_a_body_that_is_too_large_is_refused_and_the_session_continues(task: Task) -> None:
    with serving(task, sandbox="local") as client:
        client.post("/seed_session", json=row_of(task))
        large = b'{"command": "' + b"x" * (64 * 1024 * 1024) + b'"}'
        for path in ("/bash", "/verify", "/mcp", "/seed_session"):
            assert client.post(path, content=large).status_code == 413
        assert client.post("/bash", json={"command": "echo on"}).text == "on\n"


@pytest.mark.parametrize(
    ("reward", "components"),
    [(None, {}), (float("nan"), {}), (float("inf"), {}), (1.0, {"a": float("nan")})],
)
def test_a_reward_that_is_missing_or_not_finite_is_never_returned(
    reward: float | None, components: dict[str, float]
) -> None:
    with pytest.raises(HTTPException, match="no reward") as raised:
        scored_row({}, "r", reward, components, None)
    assert raised.value.status_code == 503


@pytest.mark.parametrize(
    "row", [{}, {"verifier_metadata": None}, {"verifier_metadata": {"task_id": ["x"]}}]
)
def test_a_row_without_a_task_of_the_server_starts_nothing(task: Task, row: Any) -> None:
    with serving(task) as client:
        reply = client.post("/seed_session", json=row)
        assert reply.status_code == 400
        assert "task_id" in reply.json()["error"]
        assert COOKIE not in client.cookies


def test_two_tasks_of_one_id_are_refused(task: Task) -> None:
    with pytest.raises(UsageError, match="same id"):
        create_resources_app(SessionManager.running(config()), [task, task], secret=SECRET)


def test_rows_and_configuration_name_the_task_the_tools_and_the_servers(
    task: Task, tmp_path: Path
) -> None:
    row = make_row(
        task, [ToolSpec("bash", "A shell.", {"type": "object"}), ToolSpec("submit", "", {})]
    )
    assert [tool["name"] for tool in row["responses_create_params"]["tools"]] == ["bash"]
    assert row["verifier_metadata"] == {"task_id": task.id}
    assert write_rows([row, row], tmp_path / "rows.jsonl") == 2
    assert write_rows([], tmp_path / "none.jsonl") == 0
    made = make_config("http://127.0.0.1:9001", agent_url="http://127.0.0.1:9002")
    served = made["benchflow"]["resources_servers"]["benchflow"]
    assert (served["host"], served["port"]) == ("127.0.0.1", 9001)
    write_project(tmp_path, [row], made)
    for kind, port in (("resources_servers", 9001), ("responses_api_agents", 9002)):
        program = (tmp_path / kind / "benchflow/app.py").read_text()
        assert f"HOST, PORT = '127.0.0.1', {port}" in program
        compile(program, "app.py", "exec")
    assert json.loads((tmp_path / "benchflow.yaml").read_text()) == made
    assert made["benchflow_simple_agent"]["responses_api_agents"]["benchflow"]["port"] == 9002
    with pytest.raises(UsageError, match="port"):
        make_config("http://127.0.0.1")


def test_metrics_are_of_each_task_and_of_all() -> None:
    rollouts: list[dict[str, Any]] = [
        {"_ng_task_index": 0, "reward": 1.0, "truncated": False, "text": "x"},
        {"_ng_task_index": 0, "reward": 0.0},
        {"_ng_task_index": 1, "reward": float("nan")},
        {"_ng_task_index": 1, "reward": 0.5},
    ]
    found = aggregate_metrics(rollouts)
    assert found["agent_metrics"]["mean/reward"] == 0.5
    assert found["key_metrics"] == {"mean/reward": 0.5}
    assert [group["mean/reward"] for group in found["group_level_metrics"]] == [0.5, 0.5]
    assert found["group_level_metrics"][1]["std/reward"] == 0.0
    assert aggregate_metrics([])["agent_metrics"] == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["output", "type", "role", "content", "text", "x"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_the_last_message_of_any_json_is_a_text(response: object) -> None:
    assert isinstance(last_message(response), str)


def test_the_last_message_is_the_last_one_of_the_assistant() -> None:
    part = {"type": "output_text", "text": "b"}
    output = [
        {"type": "message", "role": "assistant", "content": "a"},
        {"type": "message", "role": "assistant", "content": [part, part]},
        {"type": "message", "role": "user", "content": "question"},
        {"type": "function_call", "name": "bash", "arguments": "{}"},
    ]
    assert last_message({"output": output}) == "bb"
