"""The client of OpenEnv servers against a scripted one, and its tasks. OpenEnv is not needed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from benchflow_adapters_openenv.tasks import episode_task, openenv_tasks
from benchflow_adapters_openenv.world import TOKEN, OpenEnvClient
from benchflow_contracts import EnvironmentError_
from benchflow_testing import check_task_source

_ACTION = {
    "description": "Say something.",
    "properties": {"metadata": {"type": "object"}, "text": {"type": "string"}},
    "required": ["text"],
}


@asynccontextmanager
async def served(
    *answers: object, action: Any = _ACTION, token: str | None = None, redirect: str | None = None
) -> AsyncGenerator[str]:
    """Serve a schema, and give each message the next answer. A text is sent as it is.

    `token` is asked for at the WebSocket, which is else led to `redirect`.
    """
    left = list(answers)

    async def schema(_: web.Request) -> web.Response:
        return web.json_response({"action": action})

    async def socket(request: web.Request) -> web.WebSocketResponse:
        if redirect is not None:
            raise web.HTTPFound(redirect)
        if token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            raise web.HTTPUnauthorized
        response = web.WebSocketResponse()
        await response.prepare(request)
        async for _ in response:
            if not left:
                break
            answer = left.pop(0)
            await response.send_str(answer if isinstance(answer, str) else json.dumps(answer))
        return response

    app = web.Application()
    app.router.add_get("/schema", schema)
    app.router.add_get("/ws", socket)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def observation(reward: object = None, done: object = False, **fields: object) -> dict[str, Any]:
    body = {"observation": {"metadata": {"clock": 1}, **fields}, "reward": reward, "done": done}
    return {"type": "observation", "data": body}


def test_a_plain_environment_has_one_tool_without_metadata() -> None:
    async def check() -> None:
        last = observation(0.5, True, said="b")
        async with served(observation(said="a"), last) as url:
            client = OpenEnvClient(url)
            opened = await client.open({"level": 1}, 7)
            assert json.loads(str(opened.content)) == {"observation": {"said": "a"}}
            (tool,) = await client.tools()
            assert (tool.name, list(tool.input_schema["properties"])) == ("step", ["text"])
            answer = await client.call("step", {"text": "b"})
            assert (answer.reward, answer.finished, answer.failed) == (0.5, True, False)
            await client.close()
            await client.close()

    asyncio.run(check())


def test_a_reward_is_never_left_out_because_of_its_type() -> None:
    async def check() -> None:
        sent: list[object] = [True, None, 0, "0.5", [1.0]]
        async with served(observation(), *map(observation, sent)) as url:
            client = OpenEnvClient(url)
            await client.open({}, 0)
            # The session then says of the last two that they are not numbers.
            assert [(await client.call("step", {})).reward for _ in sent] == [1.0, *sent[1:]]
            await client.close()

    asyncio.run(check())


def test_a_server_of_tools_gives_its_tools_and_the_failures_of_calls() -> None:
    async def check() -> None:
        action = {"properties": {"type": {"const": "call_tool"}}}
        listed = observation(tools=[{"name": "look", "input_schema": {"type": "object"}}, 5])
        failed = observation(result={"is_error": True})
        async with served(observation(), listed, failed, action=action) as url:
            client = OpenEnvClient(url)
            await client.open({}, 0)
            assert (await client.tools())[0].name == "look"
            assert (await client.call("look", {})).failed
            await client.close()

    asyncio.run(check())


@pytest.mark.parametrize(
    "answer",
    [
        "[",
        "[]",
        {"type": "state", "data": {}},
        {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}},
        {"type": "error", "data": 5},
    ],
)
def test_a_server_that_does_not_answer_with_an_observation_has_failed(answer: object) -> None:
    async def check() -> None:
        async with served(answer) as url:
            client = OpenEnvClient(url)
            with pytest.raises((EnvironmentError_, ValueError)):
                await client.open({}, 0)
            await client.close()

    asyncio.run(check())


def test_a_token_opens_a_server_and_no_error_has_it() -> None:
    async def check() -> None:
        async with served(observation(said="a"), token="hunter2") as url:
            client = OpenEnvClient(url, "hunter2")
            assert "a" in str((await client.open({}, 0)).content)
            await client.close()
            for wrong in (None, "wrong-token"):
                client = OpenEnvClient(url, wrong)
                with pytest.raises(EnvironmentError_, match="answered with 401") as caught:
                    await client.open({}, 0)
                await client.close()
                assert TOKEN in str(caught.value.hint)
                assert "wrong-token" not in f"{caught.value!r}{caught.value.__cause__!r}"

    asyncio.run(check())


def test_a_redirect_of_the_socket_is_refused() -> None:
    async def check() -> None:
        async with (
            served(observation()) as other,
            served(observation(), redirect=f"{other}/ws") as url,
        ):
            client = OpenEnvClient(url)
            with pytest.raises(EnvironmentError_, match="redirect"):
                await client.open({}, 0)
            await client.close()

    asyncio.run(check())


def test_a_session_that_ends_early_has_failed() -> None:
    async def check() -> None:
        async with served(observation()) as url:
            client = OpenEnvClient(url)
            await client.open({}, 0)
            with pytest.raises(EnvironmentError_, match="ended the session"):
                await client.call("step", {"text": "a"})
            await client.close()

    asyncio.run(check())


def test_each_seed_and_each_reset_is_one_task() -> None:
    tasks = openenv_tasks().tasks("127.0.0.1:8000", "seeds", start=2, limit=3)
    assert [task.seed for task in tasks] == [2, 3, 4]
    other = episode_task("http://127.0.0.1:8000", 2, level=1)
    names = [task.config.name for task in (*tasks, other)]
    assert len(set(names)) == 4
    assert other.data == {"level": 1}


def test_the_source_keeps_the_promises_of_one() -> None:
    results = asyncio.run(check_task_source(openenv_tasks(), "127.0.0.1:8000"))
    # A split without end has no size, and no address is asked.
    assert {each.name for each in results if each.status != "passed"} == {
        "a_split_has_as_many_tasks_as_it_says",
        "a_set_that_cannot_be_read_is_a_task_error",
    }
    assert not [each for each in results if each.status == "failed"]
