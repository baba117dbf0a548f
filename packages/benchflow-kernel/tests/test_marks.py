"""What an agent changes is told from what the task brought."""

import pytest
from benchflow_contracts.testing.fakes import FakeReward


class Changes(FakeReward):
    """Notes what the sandbox's host says of the files, when it scores."""

    told = None

    async def score(self, node):
        self.told = await node.state.sandbox.changes()
        return await super().score(node)


def scored(rig, isolation=None):
    files = rig.task_dir / "environment/files/workspace"
    files.mkdir(parents=True)
    (files / "brought.txt").write_text("by the task")
    rig.task_config["environment"] = {"setup_commands": [{"command": "echo 1 > /etc/set"}]}
    if isolation is not None:
        rig.config["isolation"] = isolation
    reward = Changes(1.0)
    rig.rewards = [reward]
    rig.run()
    return reward.told


@pytest.mark.parametrize("where", ["task", "option"])
def test_files_and_setup_of_the_task_are_no_change_in_a_twin(rig, where):
    if where == "task":
        rig.task_config["verifier"] = {"isolation": "twin"}
    told = scored(rig, "twin" if where == "option" else None)
    assert "/workspace/brought.txt" not in told.added
    assert "/etc/set" not in told.added
    assert "mark" in rig.provider.operations


def test_nothing_is_marked_where_nobody_asks(rig):
    assert scored(rig, "hermetic") is None
    assert "mark" not in rig.provider.operations
