"""`bench rollout diff`, on recorded states."""

import json
import os
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import (
    EnvState,
    RolloutStarted,
    StateCaptured,
    StepFinished,
    TableState,
    ToolCallStarted,
    TurnStarted,
    UsageReported,
)
from benchflow_contracts.step import Step
from benchflow_kernel import EventLog
from benchflow_kernel.states import StateWriter


def table(*rows: tuple[int, str]) -> TableState:
    return TableState(
        columns=("id", "title"), key=("id",), rows=rows, row_count=len(rows), digest=repr(rows)
    )


def record(jobs: Path, rollout: str, *states: EnvState | None) -> None:
    """A rollout of one step per state, without a state for `None`."""
    events: list = [
        RolloutStarted(seq=0, ts=0, rollout_id=rollout, task_id="t", root="n0", meta={})
    ]
    for number, state in enumerate(states, 1):
        node = f"n{number}"
        step = Step(id=node, role="agent", started_at=0.0, finished_at=0.0)
        events.append(
            StepFinished(seq=len(events), ts=0, node=node, parent=f"n{number - 1}", step=step)
        )
        if state is not None:
            events.append(StateCaptured(seq=len(events), ts=0, node=node, state=state))
    folder = jobs / "job" / rollout
    folder.mkdir(parents=True)
    lines = (event.model_dump_json() + "\n" for event in events)
    (folder / "events.jsonl").write_text("".join(lines))


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    first = EnvState(databases={"/data/a.db": {"t": table((1, "old"), (2, "x\x1b[2J"))}})
    second = EnvState(
        databases={"/data/a.db": {"t": table((1, "new"), (3, "y"))}}, files={"/data/f": "d"}
    )
    record(tmp_path, "one", first, None, second)
    record(tmp_path, "two", first)
    return tmp_path


def test_two_nodes_of_one_rollout_are_compared(jobs: Path, capfd: pytest.CaptureFixture[str]):
    assert run(["rollout", "diff", "one:n1", "n3", "--jobs-dir", str(jobs)]) == 0
    shown = capfd.readouterr().out
    assert "- id=2, title='x\\x1b[2J'" in shown
    assert "+ id=3, title='y'" in shown
    assert "~ id=1, title: 'old' -> 'new'" in shown
    assert "+ /data/f" in shown
    assert "\x1b[2J" not in shown


def test_two_rollouts_are_compared_at_their_ends(jobs: Path, capfd: pytest.CaptureFixture[str]):
    assert run(["rollout", "diff", "two", "one", "--jobs-dir", str(jobs), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["files"]["added"] == ["/data/f"]
    assert run(["rollout", "diff", "two", "one:n1", "--jobs-dir", str(jobs)]) == 0
    assert "equal" in capfd.readouterr().err


def test_a_difference_says_its_worth_and_the_first_different_step(
    jobs: Path, capfd: pytest.CaptureFixture[str]
):
    assert run(["rollout", "diff", "one:n1", "n3", "--jobs-dir", str(jobs)]) == 0
    said = capfd.readouterr().err
    assert "one:n1 -> one:n3\nV - -> -\n" in said
    assert "first different step (end), after 1 equal steps: the end  | n2" in said
    assert run(["rollout", "diff", "one:n1", "n3", "--jobs-dir", str(jobs), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert (shown["a"]["node"], shown["b"]["diverges_at"]) == ("n1", "n2")
    assert (shown["divergence"], shown["shared_steps"]) == ("end", 1)


def test_one_node_is_shown_as_it_is_in_the_tree(jobs: Path, capfd: pytest.CaptureFixture[str]):
    where = ["--jobs-dir", str(jobs)]
    assert run(["rollout", "show", "one", "--node", "n2", *where]) == 0
    assert capfd.readouterr().out.startswith("n2\nV -\n")
    assert run(["rollout", "show", "one", "--node", "n2", *where, "--json"]) == 0
    node = json.loads(capfd.readouterr().out)
    assert node.pop("v") is None
    assert run(["rollout", "tree", "one", *where, "--json"]) == 0
    assert node in json.loads(capfd.readouterr().out)["nodes"]
    assert run(["rollout", "show", "one", "--node", "n9", *where]) != 0
    assert "no node 'n9'" in capfd.readouterr().err


def test_a_node_without_a_state_names_those_with_one(jobs: Path, capfd: pytest.CaptureFixture[str]):
    assert run(["rollout", "diff", "one:n2", "n1", "--jobs-dir", str(jobs)]) != 0
    said = " ".join(capfd.readouterr().err.split())
    assert "did not record a state of node 'n2': a turn of the agent was running" in said
    assert "n1, n3" in said


def test_a_state_that_no_option_kept_is_named_with_the_option(
    jobs: Path, capfd: pytest.CaptureFixture[str]
):
    assert run(["rollout", "diff", "one:n0", "n1", "--jobs-dir", str(jobs)]) != 0
    said = " ".join(capfd.readouterr().err.split())
    assert "node 'n0': the rollout recorded the states of leaves only" in said
    assert "run it again with --capture-state forks" in said


def test_a_state_in_a_file_is_compared_with_an_inline_one_of_an_old_log(
    jobs: Path, capfd: pytest.CaptureFixture[str]
):
    home = jobs / "job" / "new"
    state = EnvState(databases={"/data/a.db": {"t": table((1, "old"), (2, "z"))}})
    with EventLog(home / "events.jsonl") as log:
        log.append(RolloutStarted, rollout_id="new", task_id="t", root="n0")
        ref = StateWriter(home).write(state.model_dump_json().encode())
        log.append(StateCaptured, node="n0", ref=ref)
    assert run(["rollout", "diff", "one:n1", "new", "--jobs-dir", str(jobs)]) == 0
    assert "title: 'x\\x1b[2J' -> 'z'" in capfd.readouterr().out
    (home / ref.path).write_text("{}")
    assert run(["rollout", "diff", "one:n1", "new", "--jobs-dir", str(jobs)]) != 0
    assert "changed" in capfd.readouterr().err


def test_a_rollout_that_is_cut_short_says_what_was_open(
    jobs: Path, capfd: pytest.CaptureFixture[str]
):
    home = jobs / "job" / "dead"
    place = {"world": "n0", "node": "n0"}
    with EventLog(home / "events.jsonl", clock=iter(range(100, 200)).__next__) as log:
        log.append(RolloutStarted, rollout_id="dead", task_id="t", root="n0")
        log.append(TurnStarted, **place, turn=0, role="agent", prompt="Do it.")
        log.append(ToolCallStarted, **place, call="c", title="make\x1b[2J", name=None)
        log.append(UsageReported, **place, source="gateway")
        assert run(["rollout", "show", "dead", "--jobs-dir", str(jobs)]) == 0
        assert f"running in process {os.getpid()}" in capfd.readouterr().err
    assert run(["rollout", "show", "dead", "--jobs-dir", str(jobs)]) == 0
    said = capfd.readouterr().err
    assert "cut short" in said
    assert "n0  tool make" in said
    assert "for 1 s" in said
    assert "\x1b[2J" not in said
