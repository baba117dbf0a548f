"""A log of Inspect is imported by the command, as a tree that every reader of rollouts reads."""

from pathlib import Path

import pytest
from benchflow.cli.entry import run as bench
from benchflow_adapters_inspect.export import InspectExporter
from benchflow_contracts import FinishedRollout, RolloutNode
from benchflow_engine.scaffold import write_task
from benchflow_store import StoredRollout
from benchflow_testing.fakes import fake_finished_rollout, fake_hostile_rollout

REWARD = """
from benchflow_contracts import VerifyResult

class Length:
    name = "reward"
    async def score(self, node, evidence):
        return VerifyResult(reward=min(1.0, len(node.steps[-1].message) / 100))

def rewards(task, **_):
    return [Length()]
"""


def test_a_branched_log_is_the_same_tree_after_the_import(tmp_path: Path) -> None:
    original = fake_finished_rollout()
    stored = _imported(tmp_path, original)
    assert _shape(stored.tree.root) == _shape(original.tree.root)
    assert [leaf.reward for leaf in stored.tree.leaves] == [None, 1.0, 0.5]
    assert stored.read_finished().imported_from == "inspect"


def test_the_reward_of_a_task_scores_each_branch_by_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "message_lengths.py").write_text(REWARD)
    write_task(tmp_path / "task")
    more = ("--task", str(tmp_path / "task"), "--reward-import-path", "message_lengths:rewards")
    stored = _imported(tmp_path, fake_finished_rollout(), *more)
    leaves = stored.tree.leaves
    assert [leaf.reward for leaf in leaves] == [len(n.steps[-1].message) / 100 for n in leaves]
    assert leaves[1].results["imported"].reward == 1.0


def test_a_log_with_hostile_texts_is_imported_below_the_jobs_directory(tmp_path: Path) -> None:
    stored = _imported(tmp_path, fake_hostile_rollout())
    assert stored.directory.parent == tmp_path / "jobs"
    assert bench(["rollout", "tree", str(stored.directory)]) == 0


def _imported(tmp_path: Path, rollout: FinishedRollout, *more: str) -> StoredRollout:
    InspectExporter().export("job", iter([rollout]), tmp_path)
    (log,) = tmp_path.glob("*.eval")
    jobs = tmp_path / "jobs"
    words = ["rollout", "import", str(log), "--format", "inspect", "--jobs-dir", str(jobs), *more]
    assert bench(words) in {0, 1}
    (directory,) = jobs.iterdir()
    return StoredRollout(directory)


def _shape(node: RolloutNode) -> list[object]:
    """Return the messages below a node, as a nested list. Children are in no order."""
    said = "" if node.step is None else node.step.message
    return [said, *sorted((_shape(child) for child in node.children), key=str)]
