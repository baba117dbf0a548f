import json

from benchflow_agent_acp.logs import WireLog, WireRecord, read_wire_log
from benchflow_agent_acp.steps import BuilderState, StepBuilder, steps_from_wire
from benchflow_contracts import StepActivity, Usage
from hypothesis import given
from hypothesis import strategies as st


def chunk(kind, text, message_id=None):
    update = {"sessionUpdate": f"agent_{kind}_chunk", "content": {"type": "text", "text": text}}
    return update | ({"messageId": message_id} if message_id else {})


def tool(call, status=None, kind="tool_call_update", **fields):
    update = {"sessionUpdate": kind, "toolCallId": call, **fields}
    if kind == "tool_call":
        update.setdefault("title", f"do {call}")
    return update | ({"status": status} if status else {})


def updated(update):
    return "in", {"method": "session/update", "params": {"sessionId": "s", "update": update}}


def prompt(text, key=3):
    block = {"type": "text", "text": text}
    params = {"sessionId": "s", "prompt": [block]}
    return "out", {"id": key, "method": "session/prompt", "params": params}


def end(key=3, **fields):
    return "in", {"id": key, "result": {"stopReason": "end_turn", **fields}}


def gate(key):
    return "in", {
        "id": key,
        "method": "session/request_permission",
        "params": {
            "sessionId": "s",
            "toolCall": {"toolCallId": "a"},
            "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"}],
        },
    }


def allowed(key):
    return "out", {"id": key, "result": {"outcome": {"outcome": "selected", "optionId": "y"}}}


def records(*messages):
    return [
        WireRecord(float(at), direction, {"jsonrpc": "2.0", **message})
        for at, (direction, message) in enumerate(messages)
    ]


def fold(*messages):
    return steps_from_wire(records(*messages))


def test_a_step_has_reasoning_message_tool_call_and_result():
    steps = fold(
        prompt("go"),
        updated(chunk("thought", "hm")),
        updated(chunk("message", "I look.")),
        updated(tool("a", "pending", "tool_call", rawInput={"q": 1})),
        updated(tool("a", "completed", rawOutput={"r": 2})),
        updated(chunk("message", "Found.")),
        end(usage={"totalTokens": 9, "inputTokens": 7, "outputTokens": 2, "cachedReadTokens": 1}),
    )
    first, last = steps
    assert (first.id, first.prompt, first.reasoning, first.message) == (
        "s-1",
        "go",
        "hm",
        "I look.",
    )
    assert first.tool_calls[0].raw_input == {"q": 1}
    assert first.observations[0].raw_output == {"r": 2}
    assert first.stop_reason is None
    assert (last.prompt, last.message, last.stop_reason) == (None, "Found.", "end_turn")
    assert last.usage == Usage(input_tokens=7, output_tokens=2, cached_tokens=1)
    assert (first.started_at, first.finished_at, last.started_at) == (0.0, 4.0, 5.0)


def test_parallel_tool_calls_share_a_step_and_a_sequence_does_not():
    steps = fold(
        prompt("go"),
        updated(tool("a", kind="tool_call")),
        updated(tool("b", kind="tool_call")),
        updated(tool("b", "completed")),
        updated(tool("a", "failed")),
        updated(tool("c", "completed", "tool_call")),
        end(),
    )
    assert [[call.id for call in step.tool_calls] for step in steps] == [["a", "b"], ["c"]]
    assert [[o.tool_call_id for o in step.observations] for step in steps] == [["b", "a"], ["c"]]


def test_a_late_result_is_an_observation_of_the_running_step():
    steps = fold(
        prompt("go"),
        updated(tool("slow", kind="tool_call")),
        updated(tool("fast", "completed", "tool_call")),
        updated(chunk("message", "Meanwhile")),
        updated(tool("slow", "completed")),
        end(),
    )
    assert [o.tool_call_id for o in steps[1].observations] == ["slow"]
    assert steps[1].message == "Meanwhile"


def test_an_ask_ends_a_step_and_its_answer_opens_the_next():
    steps = fold(
        prompt("go"), updated(tool("a", kind="tool_call")), gate(9), allowed(9),
        updated(tool("a", "completed")), end(),
    )  # fmt: skip
    assert steps[0].ask is not None
    assert steps[0].observations == ()
    assert steps[1].answer is not None
    assert steps[1].answer.selected == {"permission": ("y",)}
    assert steps[1].observations[0].tool_call_id == "a"


def test_two_asks_at_once_are_two_nodes():
    steps = fold(prompt("go"), gate(8), gate(9), allowed(9), allowed(8), end())
    assert [step.ask is not None for step in steps] == [True, True, False, False]
    assert [step.answer is not None for step in steps] == [False, False, True, True]


def test_a_new_message_id_is_a_new_paragraph():
    (step,) = fold(
        prompt("go"),
        updated(chunk("message", "one ", "m1")),
        updated(chunk("message", "two", "m1")),
        updated(chunk("message", "three", "m2")),
        end(),
    )
    assert step.message == "one two\n\nthree"


def test_a_chunk_without_text_does_not_begin_a_step():
    steps = fold(
        prompt("go"), updated(tool("a", "completed", "tool_call")), updated(chunk("message", "")),
        end(),
    )  # fmt: skip
    assert len(steps) == 1


def test_updates_outside_of_a_turn_make_no_step():
    replay = [updated(chunk("message", "old")), updated(tool("x", "completed", "tool_call"))]
    steps = fold(*replay, prompt("go"), updated(chunk("message", "new")), end(), *replay)
    assert [step.message for step in steps] == ["new"]


def test_an_empty_turn_is_one_step():
    (step,) = fold(prompt("go"), end())
    assert (step.prompt, step.stop_reason, step.message) == ("go", "end_turn", "")


def test_a_cancelled_turn_is_cancelled_whatever_the_agent_reports():
    cancel = ("out", {"method": "session/cancel", "params": {"sessionId": "s"}})
    for ending in (end(), ("in", {"id": 3, "error": {"code": -1, "message": "x"}})):
        (step,) = fold(prompt("go"), cancel, ending)
        assert step.stop_reason == "cancelled"


def test_an_unfinished_call_shows_its_partial_output():
    partial = [{"type": "content", "content": {"type": "text", "text": "half"}}]
    (step,) = fold(
        prompt("go"), updated(tool("a", "in_progress", "tool_call", content=partial)), end()
    )
    assert [(o.status, o.content) for o in step.observations] == [("in_progress", "half")]


def test_huge_texts_are_cut_and_counted():
    (step,) = fold(
        prompt("go"),
        updated(chunk("message", "x" * 300_000)),
        updated(tool("a", "completed", "tool_call", rawInput={"k": "y" * 300_000})),
        end(),
    )
    assert len(step.message) == 256 * 1024
    assert step.meta["cut_chars"] == 300_000 - 256 * 1024
    assert set(step.tool_calls[0].raw_input) == {"cut"}


updates = st.one_of(
    st.builds(chunk, st.sampled_from(["thought", "message"]), st.text(max_size=5)),
    st.builds(
        tool,
        st.sampled_from("abc"),
        st.sampled_from([None, "pending", "completed", "failed"]),
        st.sampled_from(["tool_call", "tool_call_update"]),
    ),
    st.just({"sessionUpdate": "usage_update", "used": 1, "size": 2}),
    st.just({"sessionUpdate": "nonsense"}),
)
events = st.one_of(
    updates.map(updated),
    st.integers(5, 8).map(gate),
    st.integers(5, 8).map(allowed),
    st.just(prompt("go")),
    st.just(end()),
    st.just(("end", {"reason": "x"})),
    st.just(("step", {"reason": "a fork"})),
)


@given(st.lists(events, max_size=25), st.integers(0, 25))
def test_the_steps_of_a_prefix_are_a_prefix_of_the_steps(messages, cut):
    log = records(prompt("first"), *messages)
    builder, seen = StepBuilder(), []
    for at, record in enumerate(log):
        if at == cut:
            twin = StepBuilder()
            state = BuilderState.model_validate_json(builder.state().model_dump_json())
            twin.restore(state, builder.steps)
            prefix = steps_from_wire(log[:cut])
            assert prefix == seen
        seen += builder.feed(record)
    assert seen == builder.steps == steps_from_wire(log)
    if cut < len(log):
        for record in log[cut:]:
            twin.feed(record)
        assert twin.steps == builder.steps
    assert len({step.id for step in seen}) == len(seen)


@given(st.lists(events, max_size=12))
def test_the_steps_can_be_rebuilt_from_the_log_on_disk(tmp_path_factory, messages):
    path = tmp_path_factory.mktemp("wire") / "log.jsonl"
    live = StepBuilder()
    with WireLog(path, max_bytes=1 << 20) as log:
        for record in records(prompt("first"), *messages):
            at = log.write(record.dir, json.dumps(record.msg).encode())
            live.feed(WireRecord(at, record.dir, record.msg))
    assert steps_from_wire(read_wire_log(path)) == live.steps


def test_an_incomplete_last_line_of_the_log_is_skipped(tmp_path):
    path = tmp_path / "log.jsonl"
    with WireLog(path, max_bytes=1 << 20) as log:
        for record in records(prompt("go"), end()):
            log.write(record.dir, json.dumps(record.msg).encode())
    path.write_bytes(path.read_bytes() + b'{"t":1,"dir":"in","msg":{"jso')
    assert len(list(read_wire_log(path))) == 2


def activities(*messages):
    """What the builder reports, as words; a step's start is `step`."""
    builder, seen = StepBuilder(), []
    builder.on_activity = seen.append
    for record in records(*messages):
        builder.feed(record)
    return [
        "step" if isinstance(each, StepActivity) else f"{each.call} {each.status}" for each in seen
    ]


def test_a_step_and_a_tool_call_are_reported_when_they_begin():
    assert activities(
        prompt("go"),
        updated(chunk("thought", "hm")),
        updated(chunk("thought", " hm")),
        updated(tool("a", "pending", kind="tool_call")),
        updated(tool("a", "in_progress")),
        updated(tool("a", "completed")),
        updated(tool("a", "completed")),
        updated(chunk("message", "done")),
    ) == ["step", "a in_progress", "a completed", "step"]


@given(st.lists(events, max_size=25))
def test_each_reported_call_begins_once_and_has_at_most_one_result_in_a_turn(messages):
    builder, open_calls, seen = StepBuilder(), set(), set()

    def receive(activity):
        if isinstance(activity, StepActivity):
            return
        if activity.status in {"completed", "failed"}:
            open_calls.remove(activity.call)
        else:
            assert activity.call not in seen
            open_calls.add(activity.call)
            seen.add(activity.call)

    builder.on_activity = receive
    for record in records(prompt("first"), *messages):
        if record.msg.get("method") == "session/prompt":
            open_calls.clear()
            seen.clear()
        builder.feed(record)
    called = {call.id for step in builder.steps for call in step.tool_calls}
    assert seen - called <= {call for call in seen if call in builder.state().tools}
