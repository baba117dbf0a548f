"""`bench rollout diff`, on recorded states."""

import json
from pathlib import Path

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import EnvState, RolloutStarted, StateCaptured, StepFinished, TableState
from benchflow_contracts.step import Step


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


def test_a_node_without_a_state_names_those_with_one(jobs: Path, capfd: pytest.CaptureFixture[str]):
    assert run(["rollout", "diff", "one:n2", "n1", "--jobs-dir", str(jobs)]) != 0
    said = capfd.readouterr().err
    assert "did not record a state of node 'n2'" in said
    assert "n1, n3" in said
