"""The log says what a branch begins, before its step ends."""

import asyncio
import json

import pytest
from benchflow_contracts import Role, Usage
from benchflow_contracts.redaction import redacting
from benchflow_kernel import AskUserBranch, GroupBranch, Scene, Turn, read_events
from benchflow_testing.fakes import Act, FakeAgent, Hang, Pose, Say, ask_with_options

DAY = ask_with_options("which day?", "monday", "friday")
PROGRESS = (
    "turn_started",
    "step_started",
    "step_finished",
    "tool_call_started",
    "tool_call_ended",
    "question_opened",
    "question_answered",
    "usage_reported",
)


def tool(title: str) -> Act:
    async def run(_session) -> str:
        return "ok"

    return Act(run, title=title)


def story(rig, world: str = "n0") -> list[str]:
    """The kinds of the events of one world, from its first turn."""
    worlds = {"n0": "n0"}
    for event in rig.events:
        if event.kind == "step_finished":
            worlds[event.node] = event.node if event.label else worlds[event.parent]
    return [
        event.kind
        for event in rig.events
        if event.kind in PROGRESS
        and (worlds[event.node] if event.kind == "step_finished" else event.world) == world
    ]


def of_kind(rig, kind: str) -> list:
    return [event for event in rig.events if event.kind == kind]


def test_a_turn_its_steps_and_its_tool_calls_are_in_the_log_as_they_begin(rig):
    rig.agent = FakeAgent([[Say("I look."), tool("ls"), Say("Done.")]])
    tree = rig.run()
    assert story(rig) == [
        "turn_started",
        "step_started",
        "tool_call_started",
        "tool_call_ended",
        "step_finished",
        "step_started",
        "step_finished",
    ]
    turn, (call, *_) = of_kind(rig, "turn_started")[0], of_kind(rig, "tool_call_started")
    assert (turn.role, turn.prompt, turn.prompt_chars, turn.repeats) == ("agent", "do it", 5, False)
    step = tree.leaves[0].steps[0]
    assert (call.call, call.title, call.node) == (step.tool_calls[0].id, "ls", "n0")
    assert of_kind(rig, "tool_call_ended")[0].status == "completed"


def test_a_question_is_open_from_the_end_of_its_step_to_its_answer(rig):
    rig.agent = FakeAgent([[Pose(DAY, lambda _: [Say("ok")])]])
    rig.run()
    assert story(rig)[1:] == [
        "step_finished",
        "question_opened",
        "question_answered",
        "step_started",
        "step_finished",
    ]
    (opened,), (answered,) = of_kind(rig, "question_opened"), of_kind(rig, "question_answered")
    assert (opened.text, opened.options) == ("which day?", ("monday", "friday"))
    assert (opened.node, answered.ask, answered.by) == ("n1", "ask-1", "user")


@pytest.mark.parametrize("is_live", [False, True])
def test_a_child_of_a_question_has_its_answer_from_the_branch(rig, is_live):
    if is_live:
        rig.live()
    rig.agent = FakeAgent([[Say("hello"), Pose(DAY, lambda _: [tool("book")])]])
    rig.config["branch"] = AskUserBranch()
    tree = rig.run()
    fork = next(node for node in tree.nodes if node.branch is not None)
    for child in fork.children:
        kinds = story(rig, child.id)
        assert kinds[:3] == ["turn_started", "question_opened", "question_answered"]
        assert kinds.count("step_started") == 1, "the steps before the fork are not repeated"
        turn = next(e for e in of_kind(rig, "turn_started") if e.world == child.id)
        assert turn.repeats != is_live
        answered = next(e for e in of_kind(rig, "question_answered") if e.world == child.id)
        assert (answered.by, answered.node) == ("branch", fork.id)


def test_each_model_call_reports_its_tokens_when_it_ends(rig, with_model):
    gateway = with_model(rig)

    async def think(session) -> str:
        door = session.sandbox.spec.door("model")
        route = next(each for each in gateway.routes if each.endpoint == door.endpoint)
        await route.call({"say": "x"})
        return "ok"

    rig.agent = FakeAgent([[Act(think), Act(think)]])
    rig.config["branch"] = GroupBranch(n=2)
    tree = rig.run()
    reported = of_kind(rig, "usage_reported")
    calls = [call for leaf in tree.leaves for step in leaf.steps for call in step.model_calls]
    assert sorted(event.call for event in reported) == sorted(calls)
    assert {event.source for event in reported} == {"gateway"}
    assert all(event.usage == Usage(input_tokens=1, output_tokens=1) for event in reported)
    assert all(event.cost_usd is None for event in reported)


def test_calls_without_tokens_are_unknown_and_not_zero(rig, with_model, monkeypatch):
    monkeypatch.setattr("benchflow_testing.fakes.gateway._USAGE", Usage())
    gateway = with_model(rig)

    async def think(_session) -> str:
        await gateway.routes[0].call({})
        return "ok"

    rig.agent = FakeAgent([[Act(think)]])
    tree = rig.run()
    assert [event.usage for event in of_kind(rig, "usage_reported")] == [None]
    assert [step.usage for step in tree.leaves[0].steps] == [None]


class OneSecret:
    """A `Redactor` of one plain word, as far as an event log uses it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __bool__(self) -> bool:
        return True

    def text(self, text: str) -> str:
        return text.replace(self._secret, "[redacted]")

    def json(self, data: bytes) -> bytes:
        return self.text(data.decode()).encode()


def test_texts_of_the_agent_are_short_and_have_no_secrets(rig):
    secret = "swordfish-4711"
    padding = "x" * (500 - 5)
    rig.agent = FakeAgent([[tool(padding + secret)]])
    role = Role(agent="fake")
    rig.config["scenes"] = (Scene(roles=(role,), turns=(Turn(prompt=padding + secret * 9),)),)
    with redacting(OneSecret(secret)):
        rig.run()
    (turn,), (call,) = of_kind(rig, "turn_started"), of_kind(rig, "tool_call_started")
    assert len(turn.prompt) <= 500
    assert turn.prompt_chars == len(padding) + 9 * len(secret)
    assert len(call.title) <= 500
    assert "sword" not in (rig.directory / "events.jsonl").read_text()


def test_a_cancelled_rollout_leaves_a_log_that_says_what_was_open(rig):
    """The log is read while the tool call runs: a kill at that point leaves this log."""
    started = asyncio.Event()

    async def never(_session) -> str:
        started.set()
        await asyncio.Event().wait()
        return ""

    rig.agent = FakeAgent([[Act(never, title="sleep"), Hang()]])

    events = []

    async def scenario() -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(rig.run_async())
            await started.wait()
            events.extend(read_events(rig.directory / "events.jsonl").events)
            running.cancel()

    asyncio.run(scenario())
    last = events[-1]
    assert (last.kind, last.title) == ("tool_call_started", "sleep")


def test_the_log_with_the_new_events_is_lines_of_json_that_name_their_world(rig):
    rig.agent = FakeAgent([[tool("ls\x00\ud800")]])
    rig.run()
    log = (rig.directory / "events.jsonl").read_bytes()
    lines = [json.loads(line) for line in log.splitlines()]
    (call,) = [line for line in lines if line["kind"] == "tool_call_started"]
    assert (call["world"], call["node"]) == ("n0", "n0")
