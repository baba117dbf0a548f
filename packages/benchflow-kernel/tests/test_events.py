import itertools
import json

import pytest
from benchflow_contracts import (
    NodeFailed,
    NodeScored,
    PhaseEntered,
    RolloutFinished,
    RolloutStarted,
    Step,
    StepFinished,
    StoreError,
    ToolCall,
    VerifyResult,
)
from benchflow_kernel import EventLog, fold, read_events, tree_to_bytes
from hypothesis import given, settings
from hypothesis import strategies as st


def step(ident: str, **fields) -> Step:
    return Step(id=ident, started_at=0, finished_at=1, **fields)


def write(path, clock=None) -> list:
    seen = []
    ticks = itertools.count(100)
    with EventLog(path, clock=clock or (lambda: float(next(ticks)))) as log:
        log.subscribe(seen.append)
        log.append(RolloutStarted, rollout_id="r", task_id="t", root="n0")
        log.append(PhaseEntered, node="n0", phase="execute")
        log.append(StepFinished, node="n1", parent="n0", step=step("s1", message="é ☃"))
        log.append(StepFinished, node="n2", parent="n1", step=step("s2"))
        log.append(NodeScored, node="n2", name="reward", result=VerifyResult(reward=0.5))
        log.append(RolloutFinished, status="completed")
    return seen


def test_events_are_numbered_stamped_and_read_back_as_they_were_seen(tmp_path):
    seen = write(tmp_path / "events.jsonl")
    read = read_events(tmp_path / "events.jsonl")
    assert [event.seq for event in seen] == list(range(6))
    assert [event.ts for event in seen] == [100.0, 101.0, 102.0, 103.0, 104.0, 105.0]
    assert list(read.events) == seen
    assert read.torn_bytes == 0


@given(first=st.integers(0, 2_000), second=st.integers(0, 2_000))
@settings(max_examples=50)
def test_a_log_that_has_grown_is_read_on_from_where_a_read_ended(tmp_path_factory, first, second):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    write(path)
    data = path.read_bytes()
    path.write_bytes(data[:first])
    earlier = read_events(path)
    with path.open("ab") as file:
        file.write(data[first : first + second])
    assert read_events(path, earlier) == read_events(path)


def test_a_log_that_was_written_anew_is_not_read_on(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path)
    earlier = read_events(path)
    path.write_bytes(path.read_bytes().replace("é".encode(), b"longer than before"))
    with pytest.raises(StoreError, match="written anew"):
        read_events(path, earlier)


def test_each_event_is_on_disk_before_append_returns(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.append(RolloutStarted, rollout_id="r", task_id="t", root="n0")
        assert len(read_events(path).events) == 1


def test_a_log_without_a_path_only_tells_its_subscribers():
    seen = []
    log = EventLog(None)
    log.subscribe(seen.append)
    log.append(RolloutStarted, rollout_id="r", task_id="t", root="n0")
    log.close()
    log.close()
    assert len(seen) == 1


def test_a_subscriber_that_raises_is_dropped_and_the_log_goes_on(tmp_path, caplog):
    calls = []

    def broken(event):
        calls.append(event)
        raise RuntimeError("viewer died")

    with EventLog(tmp_path / "events.jsonl") as log:
        log.subscribe(broken)
        log.append(RolloutStarted, rollout_id="r", task_id="t", root="n0")
        log.append(RolloutFinished, status="completed")
    assert len(calls) == 1
    assert "viewer died" in caplog.text
    assert len(read_events(tmp_path / "events.jsonl").events) == 2


def test_a_log_is_never_appended_to_by_a_second_writer(tmp_path):
    write(tmp_path / "events.jsonl")
    with pytest.raises(StoreError):
        EventLog(tmp_path / "events.jsonl")


def test_a_closed_log_refuses_events(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.close()
    with pytest.raises(StoreError, match="closed"):
        log.append(RolloutFinished, status="completed")


def test_a_missing_log_is_a_store_error(tmp_path):
    with pytest.raises(StoreError):
        read_events(tmp_path / "no.jsonl")


@settings(max_examples=150)
@given(cut=st.integers(min_value=0))
def test_a_log_torn_at_any_byte_gives_the_events_before_and_counts_the_rest(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("torn")
    seen = write(folder / "whole.jsonl")
    whole = (folder / "whole.jsonl").read_bytes()
    kept = whole[: cut % (len(whole) + 1)]
    (folder / "torn.jsonl").write_bytes(kept)
    read = read_events(folder / "torn.jsonl")
    lines = kept.count(b"\n")
    assert list(read.events) == seen[:lines]
    assert read.torn_bytes == len(kept) - (kept.rfind(b"\n") + 1)
    if lines:
        assert fold(read.events).status == ("completed" if lines == 6 else "running")


@pytest.mark.parametrize("line", [b"{}", b"not json", b'{"kind":"nope","seq":1,"ts":0}', b""])
def test_a_corrupt_line_in_the_middle_names_its_file_and_line(tmp_path, line):
    path = tmp_path / "events.jsonl"
    write(path)
    lines = path.read_bytes().split(b"\n")
    lines[1] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(StoreError, match=r"events\.jsonl:2"):
        read_events(path)


def test_a_missing_line_is_noticed(tmp_path):
    path = tmp_path / "events.jsonl"
    write(path)
    lines = path.read_bytes().split(b"\n")
    del lines[2]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(StoreError, match=r"events\.jsonl:3.*number 3, not 2"):
        read_events(path)


@pytest.mark.parametrize("depth", [10, 90, 150, 210, 240, 300, 5000])
def test_nesting_of_any_depth_is_written_so_that_it_can_be_read(tmp_path, depth):
    raw: object = "core"
    for _ in range(depth):
        raw = [raw]
    calls = (ToolCall(id="c", title="t", raw_input=raw),)
    seen = []
    with EventLog(tmp_path / "events.jsonl") as log:
        log.subscribe(seen.append)
        log.append(RolloutStarted, rollout_id="r", task_id="t", root="n0")
        log.append(StepFinished, node="n1", parent="n0", step=step("s", tool_calls=calls))
    read = read_events(tmp_path / "events.jsonl")
    assert list(read.events) == seen
    text = json.dumps(seen[1].step.tool_calls[0].raw_input)
    assert ("core" in text) == (depth <= 150)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150)
@given(raw=json_like, text=st.text(st.characters(codec=None)))
def test_whatever_an_agent_sends_the_log_stays_readable(tmp_path_factory, raw, text):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    calls = (ToolCall(id="c", title=text, raw_input=raw),)
    with EventLog(path) as log:
        log.append(RolloutStarted, rollout_id="r", task_id="t", root="n0")
        log.append(StepFinished, node="n1", parent="n0", step=step("s", tool_calls=calls))
        log.append(NodeFailed, node="n1", error={"boundary": "agent", "type": "x", "message": text})
    read = read_events(path)
    assert len(read.events) == 3
    assert tree_to_bytes(fold(read.events)) == tree_to_bytes(fold(read.events))
