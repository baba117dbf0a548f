"""Trajectories that BenchFlow did not run: imported, scored, shown, and never taken for our own."""

import json
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.entry import run as bench
from benchflow_contracts import (
    FinishedRollout,
    StoreError,
    TakesTrainingOptions,
    TrainingOptions,
)
from benchflow_engine.scaffold import write_task
from benchflow_export import group_rollouts, load_exporter
from benchflow_store import StoredRollout
from benchflow_testing.fakes import fake_finished_rollout

FORMATS = sorted(point.name for point in entry_points(group="benchflow.exporters"))
TRAINERS = [name for name in FORMATS if isinstance(load_exporter(name), TakesTrainingOptions)]


def atif() -> dict[str, Any]:
    call = {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}
    result = {"source_call_id": "c1", "content": [{"type": "text", "text": "a.txt"}]}
    metrics = {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": None}
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": "../../session one",
        "agent": {"name": "harness", "version": "1", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "List the files."},
            {
                "step_id": 2,
                "source": "agent",
                "timestamp": "2026-01-01T00:00:00+00:00",
                "message": "I look.",
                "tool_calls": [call],
                "observation": {"results": [result]},
                "metrics": metrics,
            },
            {"step_id": 3, "source": "agent", "message": "There is one: a.txt."},
        ],
    }


def episode() -> dict[str, Any]:
    def node(role: str, text: str, parent: int | None) -> dict[str, Any]:
        message = {"role": role, "content": text}
        return {"parent": parent, "message": message, "sampled": role == "assistant"}

    task = {"type": "T", "data": {"id": "t", "prompt": "Say 4."}, "key": "t", "hash": "h"}
    traces = [
        {
            "id": f"e-{answer}",
            "task": task,
            "nodes": [node("user", "Say 4.", None), node("assistant", answer, 0)],
            "rewards": {"reward": {"score": score, "weight": 1.0}},
        }
        for answer, score in (("4", 1.0), ("5", 0.0))
    ]
    return {"id": "e", "task": task, "traces": traces}


def records() -> Iterator[dict[str, Any]]:
    base = {"rollout": "chat-1", "resource": {"service": "shop", "version": "2"}}
    yield {**base, "index": 0, "ts": 1.0, "kind": "started"}
    step = {"prompt": "Hello?", "message": "Hi.", "model": "m", "stop_reason": "end_turn"}
    yield {**base, "index": 1, "ts": 2.0, "kind": "step", "started_at": 1.0, **step}
    yield {**base, "index": 2, "ts": 2.5, "kind": "score", "name": "reward", "value": 0.5}
    yield {**base, "index": 3, "ts": 3.0, "kind": "ended"}


def imported(tmp_path: Path, name: str, *more: str) -> tuple[int, Path]:
    """Import the one trajectory of a format; return the exit code and the jobs directory."""
    lines = {"atif": [atif()], "verifiers": [episode()], "traces": list(records())}[name]
    file, jobs = tmp_path / f"{name}.jsonl", tmp_path / "jobs"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["rollout", "import", str(file), "--format", name, "--jobs-dir", str(jobs), *more]
    return bench(words), jobs


def test_a_trajectory_of_harbor_is_a_rollout_without_a_score(tmp_path: Path) -> None:
    code, jobs = imported(tmp_path, "atif")
    [directory] = jobs.iterdir()
    assert (code, directory.name) == (1, "imported-session-one")
    stored = StoredRollout(directory)
    [leaf] = stored.tree.leaves
    first, last = leaf.steps
    assert (first.prompt, first.message, last.message) == (
        "List the files.",
        "I look.",
        "There is one: a.txt.",
    )
    assert [(o.tool_call_id, o.content) for o in first.observations] == [("c1", "a.txt")]
    assert first.usage is not None
    assert (first.usage.input_tokens, leaf.reward) == (9, None)
    finished = stored.read_finished()
    assert (finished.imported_from, finished.agent, finished.model) == ("atif", "harness", "m")
    assert bench(["rollout", "show", str(directory)]) == 0
    assert bench(["rollout", "tree", str(directory)]) == 0


def test_an_episode_with_two_traces_is_a_tree_with_two_leaves(tmp_path: Path) -> None:
    code, jobs = imported(tmp_path, "verifiers")
    [directory] = jobs.iterdir()
    stored = StoredRollout(directory)
    assert code == 0
    assert [leaf.reward for leaf in stored.tree.leaves] == [1.0, 0.0]
    assert stored.record is not None
    assert (stored.record.reward, stored.record.leaves) == (0.5, 2)


def test_records_of_a_production_agent_are_rollouts_with_their_own_scores(tmp_path: Path) -> None:
    code, jobs = imported(tmp_path, "traces")
    [directory] = jobs.iterdir()
    stored = StoredRollout(directory)
    [leaf] = stored.tree.leaves
    assert (code, leaf.reward, leaf.steps[0].message) == (0, 0.5, "Hi.")
    assert stored.read_finished().agent == "shop"


REWARD = """
from benchflow_contracts import VerifyResult

class Mentions:
    name = "reward"
    needs_processes = False

    async def score(self, node, evidence):
        text = "".join(step.message for step in node.steps)
        return VerifyResult(reward=float(evidence.require_task("reward").id in text))

def rewards(task, **_):
    return [Mentions()]
"""


def test_the_reward_of_a_task_scores_by_the_steps_and_keeps_the_verdict_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path / "tasks" / "4")
    (tmp_path / "reward_of_steps.py").write_text(REWARD)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--task", str(tmp_path / "tasks" / "4"))
    code, jobs = imported(
        tmp_path, "verifiers", *words, "--reward-import-path", "reward_of_steps:rewards"
    )
    [directory] = jobs.iterdir()
    good, bad = StoredRollout(directory).tree.leaves
    assert (code, good.reward, bad.reward) == (0, 1.0, 0.0)
    assert good.results["imported"].reward == 1.0


def test_a_reward_that_needs_a_sandbox_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_task(tmp_path / "greet")
    code, jobs = imported(tmp_path, "atif", "--task", str(tmp_path / "greet"))
    assert code == 1
    assert "cannot score an imported rollout" in capsys.readouterr().err
    assert not jobs.exists()


def test_a_file_of_another_format_and_a_second_import_are_refused(tmp_path: Path) -> None:
    _, jobs = imported(tmp_path, "verifiers")
    assert imported(tmp_path, "verifiers")[0] not in (0, 1)
    other = tmp_path / "other.json"
    other.write_text('{"schema_version": "2"}')
    for name in ("atif", "verifiers", "traces"):
        words = ["rollout", "import", str(other), "--format", name, "--jobs-dir", str(jobs)]
        assert bench(words) not in (0, 1)
    assert len(list(jobs.iterdir())) == 1


def foreign() -> FinishedRollout:
    rollout = fake_finished_rollout()
    rollout.tree.meta = {**rollout.tree.meta, "imported_from": "verifiers"}
    return rollout


@pytest.mark.parametrize("name", TRAINERS)
def test_no_exporter_for_trainers_takes_an_imported_rollout_without_a_word(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / "refused").mkdir()
    with pytest.raises(StoreError, match="imported from 'verifiers'"):
        load_exporter(name).export("job", [foreign()], tmp_path / "refused")
    allowed = load_exporter(name).with_options(TrainingOptions(imported="train"))
    (tmp_path / "allowed").mkdir()
    allowed.export("job", [foreign()], tmp_path / "allowed")


def test_every_exporter_without_options_is_for_readers_and_not_for_trainers() -> None:
    assert len(TRAINERS) >= 10
    assert set(FORMATS) - set(TRAINERS) == {"harbor", "inspect"}


def test_a_live_trainer_leaves_an_imported_rollout_out_by_name() -> None:
    group = group_rollouts("t", [foreign()])
    assert (group.samples, [leaf.reason for leaf in group.excluded]) == ((), ["imported"])
