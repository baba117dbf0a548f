"""The data models: what goes to disk comes back, and nothing wrong gets in."""

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from benchflow_contracts import (
    Answer,
    Ask,
    AskOption,
    Branched,
    BranchRecord,
    Checkpointed,
    Door,
    EnvState,
    Event,
    NodeError,
    NodeFailed,
    NodeScored,
    NodeValued,
    Observation,
    PhaseEntered,
    Question,
    QuestionAnswered,
    QuestionOpened,
    RewardEvent,
    RolloutFinished,
    RolloutStarted,
    StateCaptured,
    StateRef,
    StateUnavailable,
    Step,
    StepFinished,
    StepStarted,
    TableState,
    ToolCall,
    ToolCallEnded,
    ToolCallStarted,
    TurnStarted,
    Usage,
    UsageReported,
    Value,
    VerifyResult,
    event_adapter,
)
from benchflow_contracts.door import Endpoint
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.task import TaskVerifier
from benchflow_contracts.verdict import MAX_REWARD

text = st.text(max_size=12)
names = st.text(min_size=1, max_size=8)
floats = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(min_value=0, max_value=2**53)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | floats | text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(text, json_values, max_size=3)


def tuples(element):
    return st.lists(element, max_size=3).map(tuple)


options = st.builds(
    AskOption, id=names, label=text, description=text, kind=st.none() | st.just("allow_once")
)
questions = st.builds(
    Question,
    id=names,
    text=text,
    options=tuples(options),
    allow_custom=st.booleans(),
    multi=st.booleans(),
)
asks = st.builds(
    Ask,
    id=names,
    channel=st.sampled_from(["elicitation", "permission", "vendor", "mcp"]),
    kind=st.sampled_from(["question", "permission"]),
    questions=st.lists(questions, min_size=1, max_size=3).map(tuple),
    tool_call_id=st.none() | names,
    raw=mappings,
)
answers = st.builds(
    Answer,
    outcome=st.sampled_from(["answered", "declined", "cancelled"]),
    selected=st.dictionaries(names, tuples(names), max_size=2),
    text=st.dictionaries(names, text, max_size=2),
)
steps = st.builds(
    Step,
    id=names,
    role=names,
    skills=tuples(names),
    prompt=st.none() | text,
    answer=st.none() | answers,
    reasoning=text,
    message=text,
    tool_calls=tuples(st.builds(ToolCall, id=names, title=text, raw_input=json_values)),
    observations=tuples(
        st.builds(
            Observation,
            tool_call_id=names,
            status=st.sampled_from(["pending", "in_progress", "completed", "failed"]),
            content=text,
            raw_output=json_values,
        )
    ),
    ask=st.none() | asks,
    usage=st.none() | st.builds(Usage, input_tokens=counts, output_tokens=counts),
    model_calls=tuples(names),
    stop_reason=st.none() | st.sampled_from(["end_turn", "cancelled", "refusal"]),
    meta=mappings,
    started_at=floats,
    finished_at=floats,
)
errors = st.builds(NodeError, boundary=names, type=names, message=text, hint=st.none() | text)
rewards = st.floats(-MAX_REWARD, MAX_REWARD)
results = st.builds(
    VerifyResult,
    reward=rewards,
    items=st.dictionaries(names, rewards, max_size=2),
    events=tuples(st.builds(RewardEvent, source=names, value=rewards)),
    meta=mappings,
)
tables = st.builds(
    TableState,
    columns=tuples(names),
    rows=st.none() | tuples(tuples(scalars)),
    row_count=counts,
    digest=names,
)
states = st.builds(
    EnvState,
    databases=st.dictionaries(names, st.dictionaries(names, tables, max_size=2), max_size=2),
    files=st.dictionaries(names, names, max_size=2),
)
head = {"seq": counts, "ts": floats}
values = st.builds(
    Value,
    mean=floats,
    n=st.integers(1, 99),
    variance=st.floats(0, 1e9),
    stderr=st.floats(0, 1e9),
)
refs = st.builds(
    StateRef,
    digest=st.binary(min_size=32, max_size=32).map(lambda digest: f"sha256:{digest.hex()}"),
    size=counts,
    path=st.none() | names,
)
place = {**head, "world": names, "node": names}
progress = st.one_of(
    st.builds(StateUnavailable, **head, node=names, reason=text),
    st.builds(
        TurnStarted,
        **place,
        turn=counts,
        role=names,
        prompt=st.none() | text,
        repeats=st.booleans(),
    ),
    st.builds(StepStarted, **place, role=names),
    st.builds(ToolCallStarted, **place, call=names, title=text, name=st.none() | text),
    st.builds(ToolCallEnded, **place, call=names, status=st.sampled_from(["completed", "failed"])),
    st.builds(
        QuestionOpened,
        **place,
        ask=names,
        ask_kind=st.sampled_from(["question", "permission"]),
        text=text,
        options=tuples(text),
    ),
    st.builds(
        QuestionAnswered,
        **place,
        ask=names,
        outcome=st.sampled_from(["answered", "declined", "cancelled"]),
        by=st.sampled_from(["user", "branch"]),
    ),
    st.builds(
        UsageReported,
        **place,
        source=st.sampled_from(["gateway", "agent"]),
        call=st.none() | names,
        usage=st.none() | st.builds(Usage, input_tokens=counts, output_tokens=counts),
        cost_usd=st.none() | st.floats(0, 1e9),
    ),
)
events = progress | st.one_of(
    st.builds(RolloutStarted, **head, rollout_id=names, task_id=names, root=names, meta=mappings),
    st.builds(PhaseEntered, **head, node=names, phase=st.sampled_from(["setup", "verify"])),
    st.builds(StepFinished, **head, node=names, parent=names, step=steps, label=st.none() | text),
    st.builds(
        Checkpointed,
        **head,
        node=names,
        ref=names,
        layers=st.dictionaries(names, names, max_size=2),
    ),
    st.builds(
        Branched,
        **head,
        node=names,
        record=st.builds(
            BranchRecord,
            policy=names,
            fidelity=st.sampled_from(["live", "state", "replay"]),
            reason=text,
            children=counts,
        ),
    ),
    st.builds(StateCaptured, **head, node=names, state=states),
    st.builds(StateCaptured, **head, node=names, ref=refs),
    st.builds(NodeScored, **head, node=names, name=names, result=results),
    st.builds(NodeValued, **head, node=names, value=values),
    st.builds(NodeFailed, **head, node=names, error=errors, label=st.none() | text),
    st.builds(
        RolloutFinished, **head, status=st.sampled_from(["completed", "failed", "cancelled"])
    ),
)


@given(steps)
def test_a_step_survives_json(step: Step):
    text = step.model_dump_json()
    assert Step.model_validate_json(text) == step
    assert Step.model_validate_json(text).model_dump_json() == text


@given(asks)
def test_an_ask_survives_json(ask: Ask):
    assert Ask.model_validate_json(ask.model_dump_json()) == ask


@given(events)
def test_an_event_is_one_line_and_survives_json(event: Event):
    line = event_adapter.dump_json(event)
    assert b"\n" not in line
    again = event_adapter.validate_json(line)
    assert again == event
    assert type(again) is type(event)
    assert event_adapter.dump_json(again) == line


@pytest.mark.parametrize("fields", [{}, {"state": {}, "ref": {"digest": "sha256:", "size": 0}}])
def test_a_captured_state_is_a_file_or_inline_and_never_both(fields):
    line = {"kind": "state_captured", "seq": 0, "ts": 0, "node": "n0", **fields}
    with pytest.raises(ValidationError):
        event_adapter.validate_python(line)


@given(asks)
def test_only_one_question_with_two_options_can_be_branched(ask: Ask):
    finite = [len(question.options) >= 2 for question in ask.questions]
    assert ask.branchable == (finite == [True])


@given(asks.filter(lambda ask: ask.questions[0].options))
def test_choosing_takes_an_option_of_the_ask_and_no_other(ask: Ask):
    first = ask.questions[0]
    answer = Answer.choose(ask, first.options[0].id)
    assert answer.selected == {first.id: (first.options[0].id,)}
    with pytest.raises(ValueError, match="no option"):
        Answer.choose(ask, "".join(option.id for option in first.options) + "x")


def test_unknown_keys_are_refused():
    with pytest.raises(ValidationError, match="extra"):
        Step.model_validate({"id": "s", "started_at": 0, "finished_at": 0, "mesage": "x"})
    with pytest.raises(ValidationError):
        event_adapter.validate_python({"kind": "no_such_event", "seq": 0, "ts": 0})


def test_records_are_frozen():
    step = Step(id="s", started_at=0, finished_at=1)
    with pytest.raises(ValidationError, match="frozen"):
        step.message = "changed"  # type: ignore[misc]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_reward_is_beyond_all_numbers(value: float):
    with pytest.raises(ValidationError):
        VerifyResult(reward=value)
    with pytest.raises(ValidationError):
        RewardEvent(source="x", value=value)


@pytest.mark.parametrize("value", [1.1 * MAX_REWARD, -1e154, 1.7e308])
def test_no_reward_is_so_large_that_its_variance_is_infinite(value: float):
    with pytest.raises(ValidationError):
        VerifyResult(reward=value)
    with pytest.raises(ValidationError, match="wider than 1e\\+50"):
        TaskVerifier(reward_range=(min(value, 0), max(value, 0)))
    TaskVerifier(reward_range=(-MAX_REWARD, MAX_REWARD))


def test_a_result_without_a_reward_needs_a_cause():
    with pytest.raises(ValidationError, match="needs an error"):
        VerifyResult(reward=None)
    with pytest.raises(ValidationError, match="needs an error"):
        VerifyResult(reward=None, error="")
    assert VerifyResult.unscored("the box broke", grading="twin").reward is None


def test_an_endpoint_shows_no_credential():
    endpoint = Endpoint(url="http://127.0.0.1:1", headers={"x-api-key": "canary"})
    assert "canary" not in f"{endpoint!r} {endpoint} {SandboxSpec(doors=(Door.to(endpoint),))!r}"
    assert Endpoint.model_validate(endpoint.model_dump()) == endpoint
