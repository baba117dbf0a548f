import asyncio

import pytest
from benchflow_agent_acp.asks import to_ask, to_reply
from benchflow_agent_acp.connection import Connection
from benchflow_agent_acp.failures import AgentReplyError
from benchflow_contracts import Answer

ASK = {
    "sessionId": "s",
    "toolCall": {"toolCallId": "t"},
    "options": [
        {"optionId": "left", "name": "Left", "kind": "allow_once"},
        {"optionId": "right", "name": "Right", "kind": "allow_once"},
    ],
}


def test_copies_of_a_state_in_the_middle_of_an_ask_answer_it_differently(memory_process):
    async def main():
        parent = memory_process()
        connection = Connection(parent)
        states, copied = [], asyncio.Event()

        async def copy_state(request):
            # Half a line has arrived as well: it belongs to the state.
            assert connection.state.buffer
            states.extend([connection.state.copy(), connection.state.copy()])
            copied.set()
            await connection.reply(request, to_reply(to_ask(request), choice("left")))

        connection.on_request(copy_state)
        await parent.say(id="q", method="session/request_permission", params=ASK)
        await parent.raw(b'{"jsonrpc":"2.0","id":1,"resu')
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(connection.call("session/prompt", {}))
            await copied.wait()
            await parent.raw(b'lt":{"who":"parent"}}\n')
        children = [
            await go_on(memory_process(), state, option)
            for state, option in zip(states, ["left", "right"], strict=True)
        ]
        await parent.hear()
        return turn.result(), (await parent.hear())["result"], children

    async def go_on(process, state, option):
        connection = Connection(process, state=state)

        async def answer(request):
            await connection.reply(request, to_reply(to_ask(request), choice(option)))

        connection.on_request(answer)
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(connection.finish(1))
            reply = await process.hear()
            await process.raw(b'lt":{"who":"%s"}}\n' % option.encode())
        assert connection.state.next_id == 2
        assert not connection.state.requests
        return turn.result()["who"], reply["id"], reply["result"]["outcome"]["optionId"]

    parent, parent_reply, children = asyncio.run(main())
    assert parent == {"who": "parent"}
    assert parent_reply["outcome"]["optionId"] == "left"
    assert children == [("left", "q", "left"), ("right", "q", "right")]


def choice(option):
    return Answer(selected={"permission": (option,)})


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
