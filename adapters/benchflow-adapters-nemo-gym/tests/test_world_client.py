"""A resources server as a world: sessions, tools, steps, and bytes that do not fit."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from benchflow_adapters_nemo_gym.world import NemoGymRows, environment, row_task
from benchflow_adapters_nemo_gym.world_client import NemoGymClient
from benchflow_contracts import EnvironmentError_, TaskError, UsageError, WorldCall
from benchflow_engine.data_tasks import write_data_task
from benchflow_env_outside import Conversation, WorldAnswer
from benchflow_kernel import load_task
from benchflow_testing import check_task_source

ROW = {
    "responses_create_params": {
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Count."}]}],
        "tools": [{"type": "function", "name": "add", "parameters": {"type": "object"}}],
    }
}
Handler = Callable[[httpx.Request, Any], Any]


def client_of(
    routes: Mapping[str, Handler], paths: Mapping[str, Any] | None = None, *, status: int = 200
) -> Any:
    """Return a client of a server that a test writes: a function for each route.

    `status` is that of the description of the server.
    """
    openapi = {"paths": paths or {"/seed_session": {}, "/verify": {}}}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/openapi.json":
            return httpx.Response(status, json=openapi if status == 200 else {})
        body = json.loads(request.content or b"null")
        found = routes[request.url.path](request, body)
        return found if isinstance(found, httpx.Response) else httpx.Response(200, json=found)

    return NemoGymClient("http://gym", transport=httpx.MockTransport(answer))


def seeded(_: httpx.Request, __: Any) -> httpx.Response:
    return httpx.Response(200, json={}, headers={"Set-Cookie": "session=one; path=/"})


def needs_cookie(request: httpx.Request, body: Any) -> Any:
    """Act as NeMo Gym's servers do: a request without the cookie has no session."""
    if request.headers.get("cookie") != "session=one":
        return httpx.Response(500, json="KeyError('session')")
    return {"sum": body.get("n")}


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_without_a_description_has_the_tools_of_the_row(status: int) -> None:
    async def main() -> None:
        client = client_of({"/seed_session": seeded, "/add": needs_cookie}, status=status)
        await client.open(ROW, 0)
        assert [tool.name for tool in await client.tools()] == ["add"]
        assert (await client.call("add", {"n": 3})).content == '{"sum":3}'
        await client.close()

    asyncio.run(main())


def test_a_description_that_fails_is_an_error_of_the_world() -> None:
    client = client_of({"/seed_session": seeded}, status=500)
    with pytest.raises(EnvironmentError_, match="returned 500"):
        asyncio.run(client.open(ROW, 0))


def test_each_request_of_a_session_has_its_cookie() -> None:
    verified: list[Any] = []

    def verify(request: httpx.Request, body: Any) -> Any:
        verified.append(body)
        return {**needs_cookie(request, body), "reward": 1, "reward_components": {"a": 0.5}}

    async def main() -> None:
        client = client_of({"/seed_session": seeded, "/add": needs_cookie, "/verify": verify})
        opened = await client.open(ROW, 0)
        assert opened.content == "Be brief.\n\nCount."
        assert [tool.name for tool in await client.tools()] == ["add"]
        answer = await client.call("add", {"n": 3})
        assert (answer.content, answer.failed) == ('{"sum":3}', False)
        calls = [WorldCall(operation="call", tool="add", arguments='{"n": 3}', result="3")]
        final = await client.finish(Conversation(steps=(), calls=calls))
        assert (final.reward, final.parts) == (1.0, {"a": 0.5})
        await client.close()

    asyncio.run(main())
    (body,) = verified
    kinds = [item["type"] for item in body["response"]["output"]]
    assert kinds == ["function_call", "function_call_output"]
    assert body["responses_create_params"] == ROW["responses_create_params"]


def test_an_error_of_a_tool_is_the_agents_and_an_error_of_verify_is_the_worlds() -> None:
    def fail(_: httpx.Request, __: Any) -> httpx.Response:
        return httpx.Response(500, text="KeyError('n')")

    async def main() -> None:
        client = client_of({"/seed_session": seeded, "/add": fail, "/verify": fail})
        await client.open(ROW, 0)
        answer = await client.call("add", {})
        assert answer == WorldAnswer("KeyError('n')", failed=True)
        with pytest.raises(EnvironmentError_, match="500"):
            await client.finish(Conversation(steps=(), calls=()))

    asyncio.run(main())


@pytest.mark.parametrize("reward", [None, True, "1", [1]])
def test_a_reward_that_is_not_a_number_is_an_error(reward: object) -> None:
    async def main() -> None:
        client = client_of({"/seed_session": seeded, "/verify": lambda _, __: {"reward": reward}})
        await client.open(ROW, 0)
        with pytest.raises(EnvironmentError_, match="reward"):
            await client.finish(Conversation(steps=(), calls=()))

    asyncio.run(main())


def test_a_gymnasium_server_gets_tool_calls_and_messages_as_steps() -> None:
    steps: list[Any] = []

    def step(_: httpx.Request, body: Any) -> Any:
        (item,) = body["response"]["output"]
        steps.append(item)
        outputs = [{"call_id": item.get("call_id"), "output": "moved"}]
        return {
            "observation": "go on",
            "reward": 0.25,
            "terminated": len(steps) == 2,
            "info": {"tool_outputs": outputs if item["type"] == "function_call" else []},
        }

    async def main() -> None:
        client = client_of(
            {"/reset": lambda _, __: {"observation": "a maze"}, "/step": step},
            {"/reset": {}, "/step": {}},
        )
        assert (await client.open(ROW, 0)).content == "Be brief.\n\nCount.\n\na maze"
        assert [tool.name for tool in await client.tools()] == ["add", "respond"]
        moved = await client.call("add", {"n": 1})
        assert (moved.content, moved.reward, moved.finished) == ("moved\n\ngo on", 0.25, False)
        assert (await client.call("respond", {"message": 1})).failed
        told = await client.call("respond", {"message": "left"})
        assert (told.content, told.finished) == ("go on", True)
        assert await client.finish(Conversation(steps=(), calls=())) is None

    asyncio.run(main())
    assert [item["type"] for item in steps] == ["function_call", "message"]
    assert json.loads(steps[0]["arguments"]) == {"n": 1}


def test_a_row_without_tools_gets_them_from_the_routes_of_the_server() -> None:
    schema = {"$ref": "#/components/schemas/Add"}
    body = {"content": {"application/json": {"schema": schema}}}
    paths: dict[str, Any] = {
        "/seed_session": {"post": {"requestBody": body}},
        "/verify": {"post": {}},
        "/add": {"post": {"requestBody": body, "summary": "Add"}},
        "/x/{y}": {"post": {}},
        "/read": {"get": {}},
    }

    async def main() -> None:
        client = client_of({"/seed_session": seeded}, paths)
        await client.open({"responses_create_params": {"input": "Hi."}}, 0)
        (tool,) = await client.tools()
        assert (tool.name, tool.description) == ("add", "Add")
        assert tool.input_schema == {"type": "object", "properties": {}}

    asyncio.run(main())


@pytest.mark.parametrize(
    "content", [b"[]", b"not json", b"[" * 100_000, b"{" + b" " * (17 << 20) + b"}"]
)
def test_bytes_that_are_not_a_reply_are_errors_of_the_world(content: bytes) -> None:
    async def main() -> None:
        client = client_of({"/seed_session": lambda _, __: httpx.Response(200, content=content)})
        with pytest.raises(EnvironmentError_):
            await client.open(ROW, 0)

    asyncio.run(main())


def test_rows_are_tasks_by_their_number(tmp_path: Path) -> None:
    path = tmp_path / "My Rows.jsonl"
    path.write_text("\n".join(json.dumps(ROW | {"n": n}) for n in range(3)))
    address = f"127.0.0.1:80/{path}"
    source = NemoGymRows()
    assert [(split.name, split.size) for split in source.splits(address)] == [("My Rows", 3)]
    second, third = source.tasks(address, "My Rows", start=1, limit=5)
    assert (second.config.name, third.data["n"]) == ("my-rows/1", 2)
    assert second.instruction == "Be brief.\n\nCount."
    assert second.config.environment.options == {"url": "http://127.0.0.1:80"}
    with pytest.raises(UsageError, match="split"):
        source.tasks(address, "train", start=0, limit=1)
    absent = f"127.0.0.1:80/{tmp_path}/absent.jsonl"
    results = asyncio.run(check_task_source(source, address, unreadable=absent))
    assert {each.name: each.reason for each in results if each.status != "passed"} == {}
    with pytest.raises(UsageError, match="HOST:PORT"):
        source.splits("rows.jsonl")
    path.write_text("{}\n[1]\n")
    with pytest.raises(TaskError, match="not a JSON object"):
        source.splits(address)
    with pytest.raises(TaskError, match="cannot be read"):
        source.splits(absent)


@pytest.mark.parametrize("host", ["169.254.169.254", "example.org"])
def test_a_task_reaches_only_hosts_that_the_operator_allows(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_WORLD_HOSTS", "127.0.0.1,169.254.169.254")
    folder = write_data_task(row_task(dict(ROW), "rows/0", f"http://{host}:80"), tmp_path)
    with pytest.raises(TaskError, match=host):
        environment(load_task(folder))


NOT_FINITE = ["NaN", "Infinity", "1e999", pytest.param("9" * 400, id="huge")]


@pytest.mark.parametrize("text", [*NOT_FINITE, "true", "null", '"1"', "[1]"])
def test_a_reward_that_is_not_a_finite_number_is_an_error(text: str) -> None:
    asyncio.run(verify_with(f'{{"reward": {text}}}'))


@pytest.mark.parametrize("text", NOT_FINITE)
def test_a_part_of_a_reward_that_is_not_finite_is_an_error(text: str) -> None:
    asyncio.run(verify_with(f'{{"reward": 1, "reward_components": {{"a": {text}}}}}'))


async def verify_with(reply: str) -> None:
    """Expect an error for a reply of `/verify`."""

    def verify(_: httpx.Request, __: Any) -> httpx.Response:
        return httpx.Response(200, content=reply.encode())

    client = client_of({"/seed_session": seeded, "/verify": verify})
    await client.open(ROW, 0)
    with pytest.raises(EnvironmentError_, match="reward"):
        await client.finish(Conversation(steps=(), calls=()))
