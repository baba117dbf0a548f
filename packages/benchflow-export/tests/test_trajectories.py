"""Steps become messages with real tool messages, and messages become trainer records."""

import json
from pathlib import Path

import pytest
from benchflow_contracts import (
    Answer,
    Ask,
    AskOption,
    Observation,
    Question,
    Step,
    StoreError,
    ToolCall,
    VerifyResult,
)
from benchflow_export import (
    export_trajectories_to_jsonl,
    steps_to_messages,
    trajectory_to_verifiers_record,
)
from benchflow_export.rows import Span, stable_example_id, verifiers_timing
from hypothesis import given
from hypothesis import strategies as st

ASK = Ask(
    id="7",
    channel="elicitation",
    kind="question",
    questions=(
        Question(
            id="room",
            text="Which room?",
            options=(AskOption(id="a", label="Aspen"), AskOption(id="b", label="Birch")),
        ),
    ),
)
ASKING = Step(
    id="s0",
    prompt="Book a room.",
    reasoning="There are two.",
    message="Let me ask.",
    ask=ASK,
    started_at=1,
    finished_at=2,
)
ACTING = Step(
    id="s1",
    answer=Answer.choose(ASK, "b"),
    message="Booking Birch.",
    tool_calls=(ToolCall(id="t1", title="book", kind="execute", raw_input={"room": "Birch"}),),
    observations=(Observation(tool_call_id="t1", status="completed", content="booked"),),
    stop_reason="end_turn",
    started_at=2,
    finished_at=3,
)


def record(result: VerifyResult, task_id: str = "office/book") -> dict[str, object]:
    return trajectory_to_verifiers_record(
        task_id=task_id, messages=steps_to_messages([ASKING, ACTING]), verify_result=result
    )


def test_a_question_is_a_tool_call_and_its_answer_the_result() -> None:
    messages = steps_to_messages([ASKING, ACTING])
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    call = messages[1]["tool_calls"][0]
    assert call["function"]["name"] == "ask_user"
    assert json.loads(call["function"]["arguments"])["questions"][0]["options"] == [
        "Aspen",
        "Birch",
    ]
    assert messages[2] == {"role": "tool", "tool_call_id": call["id"], "content": "Birch"}
    assert messages[1]["reasoning_content"] == "There are two."


def test_every_tool_result_follows_its_call() -> None:
    seen: set[str] = set()
    for message in steps_to_messages([ASKING, ACTING]):
        seen |= {call["id"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool":
            assert message["tool_call_id"] in seen


def test_a_conversation_without_a_prompt_starts_with_the_instruction() -> None:
    assert steps_to_messages([], instruction="Do it.") == [{"role": "user", "content": "Do it."}]


def test_a_record_splits_at_the_first_assistant_message() -> None:
    row = record(VerifyResult(reward=1.0, items={"booked": 1.0}))
    assert [m["role"] for m in row["prompt"]] == ["user"]
    assert row["completion"][0]["role"] == "assistant"
    assert row["metrics"] == {"booked": 1.0}
    assert row["booked"] == 1.0
    assert row["is_completed"] is True


def test_a_legacy_row_has_tool_calls_as_json_strings() -> None:
    call = record(VerifyResult(reward=1.0))["completion"][0]["tool_calls"][0]
    assert set(json.loads(call)) == {"id", "name", "arguments"}


def test_a_metric_never_overwrites_a_field() -> None:
    row = record(VerifyResult(reward=0.5, items={"reward": 0.9, "prompt": 1.0}))
    assert row["reward"] == 0.5
    assert isinstance(row["prompt"], list)


def test_an_unscored_record_has_no_reward_and_is_not_complete() -> None:
    row = record(VerifyResult.unscored("the tests hung"))
    assert row["reward"] is None
    assert row["is_completed"] is False
    assert row["info"]["reward_valid"] is False
    assert row["metrics"] == {}
    assert row["error"] == {
        "error": "RewardError",
        "message": "the tests hung",
        "error_chain_repr": "RewardError('the tests hung')",
        "error_chain_str": "RewardError",
    }
    assert row["error_chain"] == "RewardError('the tests hung')"
    assert row["long_error_chain"] == "RewardError"


def test_an_unscored_record_is_left_out_of_the_file(tmp_path: Path) -> None:
    rows = [record(VerifyResult(reward=0.0)), record(VerifyResult.unscored("no verdict"))]
    report = export_trajectories_to_jsonl(rows, tmp_path / "out" / "data.jsonl")
    assert (report.written, report.unscored) == (1, 1)
    lines = report.path.read_text().splitlines()
    assert [json.loads(line)["reward"] for line in lines] == [0.0]


def test_a_failed_export_leaves_the_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "data.jsonl"
    target.write_text("old\n")
    with pytest.raises(StoreError):
        export_trajectories_to_jsonl([{"reward": 1.0, "bad": object()}], target)
    assert target.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [target]


def test_the_keys_are_in_the_order_of_verifiers() -> None:
    row = trajectory_to_verifiers_record(
        task_id="office/book",
        messages=steps_to_messages([ASKING, ACTING]),
        verify_result=VerifyResult(reward=1.0, items={"booked": 1.0}),
        stop_condition="end_turn",
        token_usage={"input_tokens": 3.0, "output_tokens": 1.0},
    )
    head = ["example_id", "prompt", "completion", "info", "reward", "error", "timing"]
    flags = ["is_completed", "is_truncated", "stop_condition"]
    assert list(row) == [*head, *flags, "metrics", "tool_defs", "token_usage", "booked"]
    assert list(row["completion"][0]) == ["role", "content", "tool_calls", "reasoning_content"]


def test_a_record_without_times_has_a_timing_of_zeros() -> None:
    timing = record(VerifyResult(reward=1.0))["timing"]
    nothing = {"start": 0.0, "end": 0.0, "duration": 0.0}
    assert timing["setup"] == timing["generation"] == timing["scoring"] == nothing
    assert timing["model"] == timing["env"] == {"spans": [], "duration": 0.0}
    assert timing["total"] == timing["overhead"] == timing["start_time"] == 0.0


def test_the_parts_of_the_timing_add_up() -> None:
    timing = verifiers_timing(
        start_time=9.0, setup=Span(10, 12), generation=Span(10, 20), scoring=Span(21, 24)
    )
    assert [timing[k]["duration"] for k in ("setup", "generation", "scoring")] == [2, 10, 3]
    assert timing["total"] == 14
    assert timing["overhead"] == 9


def test_a_verdict_without_items_is_its_own_metric() -> None:
    row = record(VerifyResult(reward=0.5))
    assert row["metrics"] == {"verdict": 0.5}
    assert row["verdict"] == 0.5
    assert row["info"]["reward_metadata"]["items"] is None


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ({"n": 1}, {"n": 1}),
        (None, {"title": "look"}),
        ("ls", {"input": "ls"}),
        ([1], {"input": [1]}),
    ],
)
def test_the_arguments_of_a_call_are_an_object(raw: object, arguments: object) -> None:
    step = Step(
        id="s",
        tool_calls=(ToolCall(id="t", title="look", raw_input=raw),),
        started_at=1,
        finished_at=2,
    )
    row = trajectory_to_verifiers_record(
        task_id="t",
        messages=steps_to_messages([step]),
        verify_result=VerifyResult(reward=1.0),
        tool_calls="openai",
    )
    [call] = row["completion"][0]["tool_calls"]
    assert (call["id"], call["type"]) == ("t", "function")
    assert json.loads(call["function"]["arguments"]) == arguments


def test_a_file_is_plain_ascii_with_one_line_per_row(tmp_path: Path) -> None:
    hostile = {"reward": 1.0, "text": "a\u2028b\x85c\ud800"}
    report = export_trajectories_to_jsonl([hostile], tmp_path / "data.jsonl")
    [line] = report.path.read_text(encoding="ascii").splitlines()
    assert json.loads(line) == hostile


@given(st.lists(st.text(min_size=1), unique=True, min_size=2, max_size=50))
def test_two_tasks_never_share_an_example_id_by_default(names: list[str]) -> None:
    ids = {stable_example_id(name) for name in names}
    assert len(ids) == len(names)
    assert all(0 <= number < 2**53 for number in ids)
