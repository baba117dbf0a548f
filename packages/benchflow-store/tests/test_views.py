"""The views of a rollout: values in the order in which a person reads them."""

import json
from pathlib import Path

import pytest
from benchflow_contracts import (
    Ask,
    AskOption,
    Branched,
    BranchRecord,
    NodeError,
    NodeFailed,
    NodeScored,
    Observation,
    PhaseEntered,
    Question,
    RolloutFinished,
    RolloutStarted,
    Step,
    StepFinished,
    StoreError,
    ToolCall,
    VerifyResult,
)
from benchflow_store import (
    RolloutProgress,
    RolloutSummary,
    TrajectoryView,
    TreeView,
    event_lines,
    find_rollouts,
    step_lines,
    step_title,
)
from benchflow_testing.fakes import fake_finished_rollout

QUESTION = Question(id="q", text="Which drink?\nDrink", options=(AskOption(id="t", label="Tea"),))
ASKING = Step(
    id="s",
    started_at=1.0,
    finished_at=2.0,
    ask=Ask(id="a", channel="elicitation", kind="question", questions=(QUESTION,)),
)
CALLING = Step(
    id="c",
    prompt="Paint.",
    reasoning="How?",
    message="I look.\nTwice.",
    tool_calls=(ToolCall(id="1", title="ls"), ToolCall(id="2", title="rm")),
    observations=(
        Observation(tool_call_id="1", status="completed", content="fence"),
        Observation(tool_call_id="2", status="failed", content="denied"),
    ),
    started_at=1.0,
    finished_at=2.0,
)


def test_a_question_of_two_lines_is_one_line_with_its_options() -> None:
    assert step_title(ASKING) == "asks: Which drink? Drink"
    [line] = step_lines(ASKING)
    assert (line.kind, line.text) == ("asks", "Which drink? Drink  [Tea]")


def test_a_step_has_lines_for_its_prompt_messages_calls_and_results() -> None:
    assert [(line.kind, line.status, line.text) for line in step_lines(CALLING)] == [
        ("user", None, "Paint."),
        ("thinks", None, "How?"),
        ("says", None, "I look.\nTwice."),
        ("does", None, "ls"),
        ("result", "completed", "fence"),
        ("does", None, "rm"),
        ("result", "failed", "denied"),
    ]
    assert step_title(CALLING) == "rm"
    assert step_title(CALLING.model_copy(update={"tool_calls": ()})) == "I look."
    assert step_title(ASKING.model_copy(update={"ask": None, "reasoning": " \n"})) == ""


def test_a_tree_is_made_of_segments_that_branch_at_their_last_node() -> None:
    tree = fake_finished_rollout().tree
    view = TreeView.of(tree)
    assert [node.id for node in view.root.nodes] == ["n0", "n1", "n2"]
    assert [[node.id for node in branch.nodes] for branch in view.root.branches] == [
        ["n3"],
        ["n4"],
        ["n5"],
    ]
    lost, good, _ = (branch.nodes[0] for branch in view.root.branches)
    assert (good.label, good.reward, good.is_leaf, good.parent) == ("green", 1.0, True, "n2")
    assert lost.reward is None
    assert lost.error is not None
    assert view.root.nodes[0].is_leaf is False
    assert TreeView.model_validate_json(view.model_dump_json()) == view


def test_a_tree_of_limited_depth_counts_the_leaves_below() -> None:
    view = TreeView.of(fake_finished_rollout().tree, depth=0)
    assert (view.root.branches, view.root.hidden_leaves) == ((), 3)


def test_a_trajectory_has_the_lines_and_errors_of_its_path() -> None:
    tree = fake_finished_rollout().tree
    lost, good, _ = tree.leaves
    view = TrajectoryView.of(tree, good)
    assert [node.id for node in view.nodes] == ["n1", "n2", "n4"]
    assert [line.text for line in view.nodes[2].lines] == ["green", "It is green."]
    assert (view.leaf, view.leaves, view.reward, view.errors) == ("n4", 3, 1.0, ())
    assert [error.message for error in TrajectoryView.of(tree, lost).errors] == ["no end"]


FORK = BranchRecord(fidelity="live", policy="group", reason="a question", children=2)
ERROR = NodeError(boundary="agent", type="AgentError", message="gone")


def test_events_add_lines_but_only_for_failed_results() -> None:
    events = [
        RolloutStarted(seq=0, ts=0, rollout_id="r", task_id="t", root="n0"),
        PhaseEntered(seq=1, ts=1, node="n0", phase="setup"),
        StepFinished(seq=2, ts=2, node="n1", parent="n0", step=CALLING, label="red"),
        Branched(seq=3, ts=3, node="n1", record=FORK),
        NodeScored(seq=4, ts=4, node="n1", name="reward", result=VerifyResult(reward=0.5)),
        NodeFailed(seq=5, ts=5, node="n1", error=ERROR),
        RolloutFinished(seq=6, ts=6, status="completed"),
    ]
    lines = [line for event in events for line in event_lines(event)]
    kinds = [line.kind for line in lines]
    assert kinds == ["phase", "branch", *["step"] * 6, "fork", "score", "failure"]
    results = [line.line for line in lines if line.line is not None and line.line.status]
    assert [result.text for result in results] == ["denied"]
    assert (lines[0].text, lines[1].text) == ("setup", "red")
    assert lines[-3].fork == FORK
    assert lines[-2].reward == 0.5
    assert lines[-1].text == "agent: gone"

    progress = RolloutProgress()
    for event in events[:4]:
        progress.receive(event)
    assert (progress.phase, progress.steps, progress.last) == ("fork x2", 1, "rm")


def test_rollouts_are_found_in_a_rollout_a_job_and_a_directory_of_jobs(tmp_path: Path) -> None:
    home = tmp_path / "job" / "paint__1"
    home.mkdir(parents=True)
    event = RolloutStarted(seq=0, ts=0, rollout_id="paint__1", task_id="old/paint", root="n0")
    (home / "events.jsonl").write_text(event.model_dump_json() + "\n")
    for place in (tmp_path, tmp_path / "job", home):
        [stored] = find_rollouts(place)
        summary = RolloutSummary.of(stored)
        assert (summary.id, summary.task, summary.status) == ("paint__1", "old/paint", "unfinished")
        assert summary.directory == str(home)


@pytest.mark.parametrize("line", ["", "{", "[]", "7", json.dumps({"kind": "x"})])
def test_an_unfinished_rollout_with_a_torn_log_is_still_listed(tmp_path: Path, line: str) -> None:
    (tmp_path / "events.jsonl").write_text(line)
    [stored] = find_rollouts(tmp_path)
    assert RolloutSummary.of(stored).task == "-"


def test_a_damaged_record_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{")
    [stored] = find_rollouts(tmp_path)
    with pytest.raises(StoreError):
        RolloutSummary.of(stored)
