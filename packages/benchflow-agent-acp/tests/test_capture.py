"""Live forks of a client: its state is copied as JSON, and each child has its own copy."""

import asyncio
import copy
import json

import pytest
from benchflow_agent_acp import AcpAgent, parse_declaration
from benchflow_agent_acp.asks import to_ask
from benchflow_contracts import (
    AgentError,
    Answer,
    ExecResult,
    Role,
    SandboxError,
    SandboxSpec,
    SessionState,
    SnapshotError,
    UsageError,
)

DECLARATION = b"""
id = "mind"
name = "Mind"
version = "1"
description = "Remembers what it hears."
[distribution.binary]
[launch]
cmd = "mind"
[model]
wire = "none"
[session]
paths = ["{home}/.mind"]
snapshot = "files"
[ask]
channel = "elicitation"
"""
MIND = AcpAgent(parse_declaration(DECLARATION, where="mind.toml"))


class Mind:
    """What the agent process knows. Each message in gives some bytes out."""

    def __init__(self):
        self.heard = []
        self.prompt = None
        self.later = b""

    def take(self, message):
        method = message.get("method")
        if method == "session/prompt":
            return self.turn(message["id"], message["params"]["prompt"][0]["text"])
        if method is None:
            return self.answered(message)
        return line(id=message["id"], result={"protocolVersion": 1, "sessionId": "s"})

    def turn(self, key, text):
        self.prompt = key
        self.heard.append(text)
        if text.startswith("ask"):
            working = "in_progress" if "working" in text else "completed"
            side = {"sessionUpdate": "tool_call", "toolCallId": "side", "title": "side"}
            call = {"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Ask"}
            if "portable" in text:
                asks = line(id="q", method="benchflow/ask_user", params=TOOL_FORM)
                shown_late = update({**call, "status": "in_progress"})
                return update({**side, "status": working}) + asks + shown_late
            asks = line(id="q", method="elicitation/create", params=FORM)
            if "twice" in text:
                asks += line(id="q2", method="elicitation/create", params=FORM)
            # The end of its last line is still on its way when it is forked.
            self.later = update(say("still thinking"))
            cut, self.later = self.later[:25], self.later[25:]
            return update({**side, "status": working}) + update(call) + asks + cut
        if text.startswith("call"):
            working = "in_progress" if "working" in text else "completed"
            side = {"sessionUpdate": "tool_call", "toolCallId": "side", "title": "side"}
            return update({**side, "status": working})  # and now the model is called
        return self.end(f"heard {self.heard}")

    def answered(self, message):
        if "error" in message:
            return b""
        result = message["result"]
        chosen = result.get("selected") or result.get("content", {}).get("day", "nothing")
        done = {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"}
        rest, self.later = self.later, b""
        self.heard.append(chosen)
        return rest + update(done) + self.end(f"heard {self.heard}")

    def end(self, text):
        return update(say(text)) + line(id=self.prompt, result={"stopReason": "end_turn"})


def say(text):
    content = {"type": "text", "text": text}
    return {"sessionUpdate": "agent_message_chunk", "content": content}


FORM = {
    "sessionId": "s",
    "toolCallId": "t",
    "mode": "form",
    "message": "Which day?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "day": {
                "type": "string",
                "oneOf": [{"const": day, "title": day} for day in ("mon", "tue", "wed")],
            }
        },
    },
}


TOOL_FORM = {"question": "Which day?", "options": ["mon", "tue", "wed"]}


def line(**message):
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


def update(body):
    return line(method="session/update", params={"sessionId": "s", "update": body})


class Box:
    """A sandbox of one forkable process. `fork` is a live snapshot and a child of it."""

    id = "box"
    spec = SandboxSpec(workdir="/w")

    def __init__(self, process, mind=None):
        self.process = process
        self.mind = mind or Mind()
        self.attached = 0
        self._task = asyncio.get_running_loop().create_task(self._live())

    async def _live(self):
        while data := await self.process.stdin._stream.readline():
            await self.process.raw(self.mind.take(json.loads(data)))

    def fork(self, process):
        return Box(process, copy.deepcopy(self.mind))

    async def exec(self, cmd, **_):
        return ExecResult(exit_code=0, stdout="/home/agent\n", stderr="", duration_sec=0)

    async def spawn(self, cmd, **_):
        return self.process

    async def attach(self, process_id):
        if process_id != self.process.id:
            raise SandboxError(f"no process {process_id!r}")
        self.attached += 1
        return self.process

    async def aclose(self):
        await self.process.stdin.aclose()
        await self._task


ROLE = Role(name="solver", timeout_sec=30)


def forked(memory_process, body):
    """Run `body` with a connected parent and a maker of children from a state."""

    async def main():
        parent = Box(memory_process())
        boxes = [parent]

        async def child(state, at=None):
            # Through text, as when the state was written to a disk.
            again = SessionState.model_validate_json(state.model_dump_json())
            boxes.append((at or parent).fork(memory_process()))
            return await MIND.attach(boxes[-1], ROLE, again)

        child.boxes = boxes
        session = await MIND.connect(parent, ROLE)
        try:
            return await body(session, child)
        finally:
            for box in boxes:
                await box.aclose()

    return asyncio.run(main())


async def heard(session):
    await session.prompt("recall")
    return session.steps[-1].message


def test_children_of_one_capture_share_the_past_and_nothing_else(memory_process):
    async def body(session, child):
        await session.prompt("past")
        state = await session.capture()
        assert state.ask is None
        one, two = await child(state), await child(state)
        await session.prompt("parent only")
        await one.prompt("one only")
        await two.prompt("two only")
        grandchild = await child(await one.capture(), at=None)
        return [await heard(each) for each in (session, one, two)], state, grandchild

    (parent, one, two), state, grandchild = forked(memory_process, body)
    assert parent == "heard ['past', 'parent only', 'recall']"
    assert one == "heard ['past', 'one only', 'recall']"
    assert two == "heard ['past', 'two only', 'recall']"
    assert [step.prompt for step in state.steps] == ["past"]
    assert json.loads(state.model_dump_json())["data"]["next_id"] == 4
    assert [step.prompt for step in grandchild.steps] == ["past", "one only"]


def test_each_child_gives_the_pending_question_its_own_answer(memory_process):
    async def body(session, child):
        states = []

        async def ask_user(ask):
            states.append(await session.capture())
            children = [await child(states[0]) for _ in range(3)]
            for each, day in zip(children, ("mon", "tue", "wed"), strict=True):
                assert await each.answer(Answer.choose(ask, day)) == "end_turn"
                ends.append((each, await heard(each)))
            return Answer.choose(ask, "mon")

        ends = []
        session.on_ask_user(ask_user)
        assert await session.prompt("ask") == "end_turn"
        return states[0], [(each.steps, said) for each, said in ends], session.steps

    state, ends, parent = forked(memory_process, body)
    assert state.ask is not None
    assert state.ask == state.steps[-1].ask
    assert state.data["prompt_id"] == 3
    for (steps, message), day in zip(ends, ("mon", "tue", "wed"), strict=True):
        assert message == f"heard ['ask', '{day}', 'recall']"
        _, asking, answered, last, _ = steps
        assert asking.ask == state.ask
        assert answered.answer == Answer(selected={"day": (day,)})
        # The line that was cut in two by the fork is whole, and the call that was open ended.
        assert answered.message == "still thinking"
        assert [seen.tool_call_id for seen in answered.observations] == ["t"]
        assert last.message == f"heard ['ask', '{day}']"
    assert [step.answer for step in parent] == [step.answer for step in ends[0][0][:-1]]
    assert len({step.id for step in parent}) == len(parent)


async def at_call(session, child, prompt, body):
    """Run `body` while the parent's agent waits for its model, then let the model answer."""
    acted, ends = asyncio.Event(), []
    session.on_activity(lambda _: acted.set())
    async with asyncio.TaskGroup() as group:
        turn = group.create_task(session.prompt(prompt))
        await acted.wait()
        try:
            ends.append(await body())
        finally:
            mind = child.boxes[0].mind
            await child.boxes[0].process.raw(mind.end("the parent's answer"))
        assert await turn == "end_turn"
    return ends[0]


def test_each_child_continues_its_turn_with_an_answer_of_its_own_model(memory_process):
    async def body(session, child):
        async def fork():
            with pytest.raises(SnapshotError, match="does not wait for exactly one answer"):
                await session.capture()
            await session.end_step(also_empty=False)
            await session.end_step(also_empty=False)
            state = await session.capture_at_call()
            assert (state.at_call, state.ask) == (True, None)
            for said in ("one", "two"):
                twin = await child(state)
                async with asyncio.TaskGroup() as group:
                    turn = group.create_task(twin.resume_turn())
                    box = child.boxes[-1]
                    await box.process.raw(box.mind.end(said))
                assert turn.result() == "end_turn"
                with pytest.raises(RuntimeError, match="not forked at a model call"):
                    await twin.resume_turn()
                children.append(twin.steps)
                assert await heard(twin) == "heard ['call', 'recall']"

        children = []
        with pytest.raises(RuntimeError, match="not forked at a model call"):
            await session.resume_turn()
        await at_call(session, child, "call", fork)
        return children, session.steps

    children, parent = forked(memory_process, body)
    for steps in (*children, parent):
        assert [step.prompt for step in steps] == ["call", None]
        assert [seen.tool_call_id for seen in steps[0].observations] == ["side"]
    said = [steps[1].message for steps in (*children, parent)]
    assert said == ["one", "two", "the parent's answer"]
    assert children[0][0] == parent[0]


def test_a_step_that_may_have_calls_ends_also_if_it_is_empty(memory_process):
    async def body(session, child):
        async def end():
            await session.end_step(also_empty=True)
            await session.end_step(also_empty=False)
            await session.end_step(also_empty=True)

        await at_call(session, child, "call", end)
        return session.steps

    steps = forked(memory_process, body)
    assert [len(step.observations) for step in steps] == [1, 0, 0]
    assert [step.message for step in steps] == ["", "", "the parent's answer"]
    assert len({step.id for step in steps}) == 3


def test_a_session_is_not_at_a_call_between_turns_or_while_a_tool_runs(memory_process, monkeypatch):
    monkeypatch.setattr("benchflow_agent_acp.session._TOOLS_END_SEC", 0.05)

    async def body(session, child):
        async def fork():
            for work in (session.end_step(also_empty=True), session.capture_at_call()):
                with pytest.raises(SnapshotError, match="tool call is running") as caught:
                    await work
                assert caught.value.retryable

        for work in (session.end_step(also_empty=True), session.capture_at_call()):
            with pytest.raises(SnapshotError, match="not in a turn"):
                await work
        await at_call(session, child, "call, working on the side", fork)
        await session.aclose()
        with pytest.raises(SnapshotError, match="has ended"):
            await session.end_step(also_empty=True)
        return len(session.steps)

    assert forked(memory_process, body) == 1


def test_a_captured_question_accepts_one_valid_answer(memory_process):
    async def body(session, child):
        with pytest.raises(RuntimeError, match="does not wait for the answer"):
            await session.answer(Answer())
        done = []

        async def ask_user(ask):
            with pytest.raises(RuntimeError, match="does not wait for the answer"):
                await session.answer(Answer.choose(ask, "mon"))
            twin = await child(await session.capture())
            with pytest.raises(AgentError, match="still in a turn"):
                await twin.prompt("other")
            with pytest.raises(UsageError):
                await twin.answer(Answer(selected={"day": ("never",)}))
            again = await twin.capture()
            assert again.ask == ask
            await twin.answer(Answer.choose(ask, "tue"))
            with pytest.raises(RuntimeError, match="does not wait for the answer"):
                await twin.answer(Answer.choose(ask, "tue"))
            done.append(twin.steps[-1].message)
            return Answer.choose(ask, "mon")

        session.on_ask_user(ask_user)
        await session.prompt("ask")
        return done

    assert forked(memory_process, body) == ["heard ['ask', 'tue']"]


def test_the_portable_tools_call_may_arrive_after_its_question(memory_process):
    async def body(session, child):
        states = []

        async def ask_user(ask):
            states.append(await session.capture())
            return Answer.choose(ask, "mon")

        session.on_ask_user(ask_user)
        await session.prompt("ask by the portable tool")
        return states[0].ask

    ask = forked(memory_process, body)
    assert (ask.channel, ask.tool_call_id) == ("mcp", None)


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("ask, working on the side", "tool call is running"),
        ("ask by the portable tool, working on the side", "tool call is running"),
        ("ask twice", "exactly one answer"),
    ],
)
def test_capture_is_refused_if_a_child_could_not_continue(memory_process, prompt, why):
    async def body(session, child):
        asked, refused, tried = [], [], asyncio.Event()

        async def ask_user(ask):
            asked.append(ask)
            if len(asked) == 1:
                with pytest.raises(SnapshotError, match=why) as caught:
                    await session.capture()
                refused.append(caught.value.retryable)
                tried.set()
            await tried.wait()
            return Answer.choose(ask, "mon")

        session.on_ask_user(ask_user)
        assert await session.prompt(prompt) == "end_turn"
        assert (await session.capture()).ask is None
        await session.aclose()
        with pytest.raises(SnapshotError, match="has ended") as caught:
            await session.capture()
        assert not caught.value.retryable
        return refused

    assert forked(memory_process, body) == [True]


def test_messages_between_turns_are_captured(memory_process):
    async def body(session, child):
        await session.prompt("past")
        # A request of the agent's own, and the first half of a line.
        process = session._connection._process
        await process.say(id="x", method="vendor/ping", params={"a": [1]})
        await process.raw(b'{"jsonrpc":"2.0","method":"ven')
        state = await session.capture()
        assert process.stdout.waiting() == 0
        twin = await child(state)
        await twin._connection._process.raw(b'dor/note"}\n')
        return state, await heard(twin), await twin.capture()

    state, message, after = forked(memory_process, body)
    assert [request["method"] for request in state.data["requests"]] == ["vendor/ping"]
    assert state.data["buffer"]
    assert message == "heard ['past', 'recall']"
    assert after.data["requests"] == []
    assert after.data["buffer"] == ""


def test_a_captured_state_of_another_agent_or_version_is_refused(memory_process):
    async def body(session, child):
        state = await session.capture()
        other = state.model_copy(update={"agent": "other"})
        with pytest.raises(AgentError, match="is of agent 'other'"):
            await child(other)
        for data in ({"version": 2}, {**state.data, "buffer": "%"}, {**state.data, "more": 1}):
            with pytest.raises(AgentError, match="cannot be read"):
                await child(state.model_copy(update={"data": data}))

    forked(memory_process, body)


def test_a_captured_ask_keeps_the_id_of_its_request(memory_process):
    async def body(session, child):
        seen = []

        async def ask_user(ask):
            state = await session.capture()
            twin = await child(state)
            (request,) = twin._connection.state.requests.values()
            seen.append((to_ask(request), ask, type(request.id)))
            return Answer(outcome="declined")

        session.on_ask_user(ask_user)
        await session.prompt("ask")
        return seen

    ((at_fork, asked, kind),) = forked(memory_process, body)
    assert at_fork == asked
    assert kind is str
