"""What the branches of a running rollout do, from its log alone."""

import asyncio
import functools
import os
import tempfile
from pathlib import Path

import pytest
from benchflow_contracts import (
    Event,
    PhaseEntered,
    Role,
    RolloutStarted,
    Step,
    StepFinished,
    Task,
    TaskConfig,
    ToolCallEnded,
    ToolCallStarted,
    TurnStarted,
    Usage,
    UsageReported,
    event_adapter,
)
from benchflow_kernel import (
    AskUserBranch,
    AutoUser,
    EventLog,
    Planes,
    RolloutConfig,
    Scene,
    Turn,
    fold,
    read_events,
    run_rollout,
)
from benchflow_store import RolloutProgress, writer_of
from benchflow_testing.fakes import (
    Act,
    FakeAgent,
    FakeReward,
    FakeSandboxProvider,
    Pose,
    Say,
    ask_with_options,
)
from hypothesis import given
from hypothesis import strategies as st

NEW = {
    "turn_started",
    "step_started",
    "tool_call_started",
    "tool_call_ended",
    "question_opened",
    "question_answered",
    "usage_reported",
}


@functools.cache
def real_log() -> tuple[Event, ...]:
    """The log of a rollout of two turns that forks at a question."""

    async def ls(_session) -> str:
        return "a.txt"

    ask = ask_with_options("which day?", "monday", "friday")
    moves = [[Act(ls, title="ls"), Say("ok")], [Pose(ask, lambda _: [Act(ls, title="book")])]]
    role = Role(agent="fake")
    task = Task(
        id="demo",
        path=Path("/"),
        instruction="do it",
        config=TaskConfig(name="demo"),
        digest="sha256:0",
    )
    planes = Planes(
        provider=FakeSandboxProvider(),
        agents={"fake": FakeAgent(moves)},
        rewards=(FakeReward(1.0),),
        environment=None,
        user=AutoUser,
    )
    scene = Scene(roles=(role,), turns=(Turn(), Turn(prompt="now book")))
    config = RolloutConfig(scenes=(scene,), branch=AskUserBranch())
    with tempfile.TemporaryDirectory() as place:
        home = Path(place) / "rollout"
        asyncio.run(run_rollout(task, config, planes, directory=home))
        return read_events(home / "events.jsonl").events


def test_each_branch_passes_from_its_setup_to_its_end():
    progress, seen = RolloutProgress(), {}
    for event in real_log():
        progress.receive(event)
        for branch in progress.branches:
            steps = seen.setdefault(branch.world, [])
            if steps[-1:] != [branch.activity]:
                steps.append(branch.activity)
    root, *children = seen.values()
    assert root == ["prepares", "thinks", "tool", "thinks", "idle", "thinks", "asks", "ends"]
    assert len(children) == 2
    for child in children:
        assert child == [
            "prepares",
            "thinks",
            "asks",
            "thinks",
            "tool",
            "thinks",
            "idle",
            "grades",
            "ends",
        ]
    assert progress.branches == ()
    assert progress.is_finished


@given(cut=st.integers(1, 200), is_old=st.booleans())
def test_a_log_that_was_cut_anywhere_says_what_was_open(cut, is_old):
    events = [e for e in real_log() if not (is_old and e.kind in NEW)]
    events = [e.model_copy(update={"seq": at}) for at, e in enumerate(events)][:cut]
    tree, progress = fold(events), RolloutProgress.of(events)
    opened = {e.node for e in events if e.kind == "phase_entered"}
    closed = {e.node for e in events if e.kind == "world_closed"}
    if not progress.is_finished:
        assert {branch.world for branch in progress.branches} == opened - closed
    for branch in progress.branches:
        assert branch.node in tree.index or branch.node == branch.world
        assert branch.since <= branch.last_sign <= events[-1].ts
        assert (branch.activity == "tool") == bool(branch.tools)


def at(kind: type, ts: float, **fields) -> Event:
    return kind(seq=0, ts=ts, **fields)


def thinking(until: float) -> RolloutProgress:
    place = {"world": "n0", "node": "n0"}
    return RolloutProgress.of(
        [
            at(RolloutStarted, 0, rollout_id="r", task_id="t", root="n0"),
            at(PhaseEntered, 1, node="n0", phase="execute"),
            at(TurnStarted, 2, **place, turn=0, role="agent", prompt="Do it."),
            at(ToolCallStarted, 5, **place, call="a", title="make", name="bash"),
            at(ToolCallStarted, 6, **place, call="b", title="ls"),
            at(ToolCallEnded, 7, **place, call="a", status="completed"),
        ][: int(until)]
    )


def test_a_tool_call_runs_since_its_own_start_and_thinking_since_the_last_result():
    progress = thinking(6)
    (branch,) = progress.branches
    assert (branch.activity, branch.text, branch.since, branch.last_sign) == ("tool", "ls", 6, 7)
    place = {"world": "n0", "node": "n0"}
    progress.receive(at(ToolCallEnded, 8, **place, call="b", status="failed"))
    step = Step(id="s", started_at=2, finished_at=8)
    progress.receive(at(StepFinished, 99, node="n1", parent="n0", step=step))
    (branch,) = progress.branches
    assert (branch.activity, branch.since, branch.last_sign, branch.node) == ("thinks", 8, 99, "n1")


def test_a_branch_is_described_in_one_line():
    progress = thinking(6)
    assert progress.text(18) == "tool ls for 12 s"
    assert thinking(5).text(17) == "tool bash for 12 s"
    assert thinking(3).text(242) == "thinking for 4.0 min"
    assert thinking(1).text(9) == "setup"
    second = at(PhaseEntered, 8, node="n7", phase="start")
    progress.receive(second)
    assert progress.text(18) == "2 branches: tool ls for 12 s"
    assert progress.branches[1].text_at(9) == "start for 1 s"


def test_unknown_tokens_and_costs_are_counted_and_never_zero():
    place = {"world": "n0", "node": "n0", "source": "gateway"}
    progress = thinking(3)
    assert progress.usage.known is None
    progress.receive(at(UsageReported, 3, **place))
    assert (progress.usage.known, progress.usage.cost_usd) == (None, None)
    usage = Usage(input_tokens=3, output_tokens=1)
    progress.receive(at(UsageReported, 4, **place, usage=usage, cost_usd=0.5))
    progress.receive(at(UsageReported, 5, **place, usage=usage))
    total = progress.usage
    assert (total.known.input_tokens, total.cost_usd) == (6, 0.5)
    assert (total.calls, total.calls_without_tokens, total.calls_without_cost) == (3, 1, 2)


def test_the_writer_of_a_log_is_known_while_the_log_is_open(tmp_path: Path):
    assert writer_of(tmp_path) is None
    with EventLog(tmp_path / "events.jsonl"):
        assert writer_of(tmp_path) == os.getpid()
    assert writer_of(tmp_path) is None


@pytest.mark.parametrize("kind", sorted(NEW))
def test_the_real_log_has_each_kind_but_usage(kind):
    has = any(event.kind == kind for event in real_log())
    assert has == (kind != "usage_reported")
    assert all(event_adapter.validate_json(e.model_dump_json()) == e for e in real_log())
