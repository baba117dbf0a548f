import asyncio

import pytest
from benchflow_agent_acp.connection import AgentReplyError, Connection


def test_an_error_reply_keeps_the_connection_usable(memory_process):
    async def main():
        process = memory_process()
        connection = Connection(process, name="demo")
        await process.say(id=1, error={"code": -32000, "message": "log in", "data": {"x": 1}})
        with pytest.raises(AgentReplyError, match=r"demo.*authenticate.*log in.*x") as caught:
            await connection.call("authenticate", {})
        assert caught.value.code == -32000
        await process.say(id=2, result=None)
        assert await connection.call("session/set_mode", {}) == {}

    asyncio.run(main())


def test_a_connection_leaves_no_task_behind_between_calls(memory_process):
    async def main():
        process = memory_process()
        connection = Connection(process)
        await process.say(id=1, result={})
        await connection.call("initialize", {})
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_replies_of_concurrent_requests_are_never_mixed_on_the_wire(memory_process):
    async def main():
        process = memory_process()
        connection = Connection(process)

        async def serve(request):
            await asyncio.sleep(0)
            await connection.reply(request, {"echo": request.params["text"]})

        connection.on_request(serve)
        texts = ["x" * size for size in (1, 70_000, 3, 200_000)]
        for key, text in enumerate(texts):
            await process.say(id=f"r{key}", method="m", params={"text": text})
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(connection.call("session/prompt", {}))
            await process.hear()
            seen = [await process.hear() for _ in texts]
            await process.say(id=1, result={})
        return sorted(len(message["result"]["echo"]) for message in seen)

    assert asyncio.run(main()) == [1, 3, 70_000, 200_000]
