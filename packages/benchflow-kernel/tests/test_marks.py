"""What an agent changes is told from what the task brought."""

import pytest
from benchflow_contracts import SetupCommand, TaskParts, TaskStep
from benchflow_testing.fakes import Act, FakeAgent, FakeReward


class Changes(FakeReward):
    """Notes what the sandbox's host says of the files, when it scores."""

    told = None

    def __init__(self, *given) -> None:
        super().__init__(*given)
        self.each = {}

    async def score(self, node, evidence):
        self.told = await evidence.world.sandbox.changed_files()
        self.each[evidence.task.instruction] = {*self.told.added, *self.told.changed}
        return await super().score(node, evidence)


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
    assert "set_baseline" in rig.provider.operations


def test_nothing_is_marked_where_nobody_asks(rig):
    assert scored(rig, "hermetic") is None
    assert "set_baseline" not in rig.provider.operations


class Each(FakeAgent):
    """An agent that does the same in each session."""

    def __init__(self, move) -> None:
        super().__init__()
        self._move = move

    async def connect(self, *given, **options):
        return await FakeAgent([[self._move]]).connect(*given, **options)


def step(tmp_path, name):
    files = tmp_path / name
    files.mkdir()
    (files / f"{name}.txt").write_text("by the task")
    setup = SetupCommand(command=f"echo 1 > /etc/{name}")
    parts = TaskParts(workdir_files=files)
    return TaskStep(name=name, instruction=name, setup_commands=(setup,), parts=parts)


def of_steps(rig, tmp_path, agent):
    rig.steps = (step(tmp_path, "first"), step(tmp_path, "second"))
    rig.config["isolation"] = "twin"
    rig.agents = {"fake": Each(Act(agent))}
    reward = Changes(1.0)
    rig.rewards = [reward]
    rig.run()
    return reward.each


def test_what_a_later_step_brings_is_no_change_and_what_an_agent_did_before_stays_one(
    rig, tmp_path
):
    async def meddle(session):
        await session.sandbox.exec("echo 1 >> /usr/bin/env", user="root")
        return ""

    told = of_steps(rig, tmp_path, meddle)
    assert told == {"first": {"/usr/bin/env"}, "second": {"/usr/bin/env"}}


def test_what_a_step_brings_beside_an_agents_process_counts(rig, tmp_path):
    async def stay(session):
        await session.sandbox.exec("(sleep 1000) &", user="root")
        return ""

    told = of_steps(rig, tmp_path, stay)
    assert told["first"] == set()
    assert "/etc/second" in told["second"]
