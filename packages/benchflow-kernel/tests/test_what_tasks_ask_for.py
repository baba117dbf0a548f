"""What a task asks for beside its box: variables of the host, tools, skills and time."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts import (
    AgentNeeds,
    Role,
    TaskError,
    TaskParts,
    TaskStep,
)
from benchflow_kernel import Deadlines, RolloutConfig, Scene
from benchflow_kernel.resolve import Plan, make_plan
from benchflow_testing.fakes import FakeAgent, FakeReward, Say

SECRET = "the-operators-own-key"
ASKS = {"host_env": {"KEY": "${LOWERED_KEY}", "REGION": "${LOWERED_REGION:-here}"}}


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOWERED_KEY", SECRET)
    monkeypatch.setenv("LOWERED_REGION", "there")


def test_a_task_gets_no_variable_that_was_not_allowed(rig, secret):
    rig.task_config["environment"] = ASKS
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error is not None
    assert (tree.error.boundary, tree.error.type) == ("task", "TaskError")
    assert "task.toml:environment.env.KEY" in tree.error.message
    assert tree.error.hint == "--forward-env LOWERED_KEY, if this task may have it"
    assert rig.provider.created == []


def test_an_allowed_variable_reaches_the_box_and_no_record(rig, secret):
    rig.task_config["environment"] = ASKS
    rig.config["forward_env"] = ("LOWERED_KEY",)
    rig.run()
    (box,) = rig.provider.created
    # A name that is not allowed has its default, whatever the operator's value is.
    assert (box.spec.env["KEY"], box.spec.env["REGION"]) == (SECRET, "here")
    written = [path.read_bytes() for path in Path(rig.directory).rglob("*") if path.is_file()]
    assert written
    assert not any(SECRET.encode() in data for data in written)


def test_an_allowed_variable_that_is_not_set_is_asked_for(rig, monkeypatch):
    monkeypatch.delenv("LOWERED_KEY", raising=False)
    rig.task_config["verifier"] = ASKS
    rig.config["forward_env"] = ("LOWERED_KEY",)
    tree = rig.run()
    assert tree.error is not None
    assert "the variable 'LOWERED_KEY' is not set" in tree.error.message


def test_graders_are_given_the_task_with_its_variables(rig, secret):
    rig.task_config["verifier"] = {
        **ASKS,
        "env": {"PLAIN": "p"},
        "environment": {"host_env": {"BOX": "${LOWERED_KEY}"}},
    }
    rig.config["forward_env"] = ("LOWERED_KEY", "LOWERED_REGION")
    seen = []
    rig.rewards = [FakeReward(lambda _, given: seen.append(given.task.config.verifier) or 1.0)]
    rig.run()
    (verifier,) = seen
    assert verifier.env == {"PLAIN": "p", "KEY": SECRET, "REGION": "there"}
    assert verifier.environment.env == {"BOX": SECRET}


def test_only_who_plays_the_solution_has_its_variables(rig, secret):
    rig.task_config["solution"] = {"env": {"A": "task"}, **ASKS, "command": "run", "may_fail": True}
    rig.config["forward_env"] = ("LOWERED_KEY",)
    rig.config["scenes"] = (Scene(roles=(Role(agent="fake", env={"A": "role", "B": "b"}),)),)
    rig.run()
    assert rig.agent.sessions[0].role.env == {"A": "role", "B": "b"}

    rig.again("oracle")
    rig.agent = FakeAgent([[Say("done")]], needs=AgentNeeds(solution=True))
    rig.run()
    role = rig.agent.sessions[0].role
    assert role.env == {"A": "task", "B": "b", "KEY": SECRET, "REGION": "here"}
    assert (role.solution_command, role.solution_may_fail) == ("run", True)


def test_the_agent_is_told_of_the_tools_and_skills_of_the_image(rig):
    rig.task_config["environment"] = {
        "skills_dir": "/harbor/skills",
        "mcp_servers": [{"name": "db", "transport": "sse", "url": "http://127.0.0.1:1/sse"}],
    }
    rig.run()
    role = rig.agent.sessions[0].role
    assert role.skills_dir == "/harbor/skills"
    assert [server.name for server in role.mcp_servers] == ["db"]


def test_no_agent_is_connected_to_a_box_that_stays_unhealthy(rig):
    check = {"command": "echo no db; false", "retries": 2, "interval_sec": 0.001}
    rig.task_config["environment"] = {"healthcheck": check}
    tree = rig.run()
    assert tree.error is not None
    assert tree.error.type == "ReadinessError"
    assert "no db" in tree.error.message
    assert rig.agent.sessions == []


def planned(rig, **config: object) -> Plan:
    asked = RolloutConfig.model_validate({**rig.config, **config})
    return asyncio.run(make_plan(rig.task(), asked, rig.planes(), "r1"))


def test_a_tasks_own_times_outlast_the_defaults(rig):
    rig.task_config |= {
        "agent": {"timeout_sec": 20_000},
        "verifier": {"timeout_sec": 5000, "collect": [{"command": "true", "timeout_sec": 100}]},
        "environment": {"image_timeout_sec": 600},
    }
    plan = planned(rig)
    assert plan.turns[0].role.timeout_sec == 20_000
    deadlines, default = plan.config.deadlines, Deadlines()
    assert deadlines.execute == 20_000
    assert deadlines.verify > 5100
    assert deadlines.start == default.start + 600
    assert deadlines.connect == default.connect


def test_times_that_the_operator_chose_hold(rig):
    rig.task_config |= {"agent": {"timeout_sec": 20_000}, "verifier": {"timeout_sec": 5000}}
    scenes = (Scene(roles=(Role(agent="fake", timeout_sec=7),)),)
    plan = planned(rig, scenes=scenes, deadlines={"execute": 9, "verify": 8})
    assert plan.turns[0].role.timeout_sec == 7
    assert (plan.config.deadlines.execute, plan.config.deadlines.verify) == (9, 8)


def test_short_times_shorten_no_deadline(rig):
    rig.task_config |= {"agent": {"timeout_sec": 5}, "verifier": {"timeout_sec": 5}}
    plan = planned(rig)
    assert plan.turns[0].role.timeout_sec == 5
    assert plan.config.deadlines == Deadlines()


def test_what_names_no_variable_is_refused(rig):
    rig.task_config["environment"] = {"host_env": {"A": "prefix-${B}"}}
    with pytest.raises(TaskError, match="does not name a variable"):
        planned(rig)


def test_offline_takes_every_network_from_a_task(rig):
    public = {"network": "public"}
    rig.task_config |= {
        "environment": public,
        "verifier": {**public, "environment": {"network": "allowlist", "allowed_hosts": ["a.b"]}},
    }
    rig.config["offline"] = True
    seen = []
    rig.rewards = [FakeReward(lambda _, given: seen.append(given.task.config.verifier) or 1.0)]
    assert rig.run().status == "completed"
    (box,) = rig.provider.created
    (verifier,) = seen
    assert verifier.environment is not None
    assert [box.spec.network, verifier.network, verifier.environment.network] == ["none"] * 3
    assert verifier.environment.allowed_hosts == ()


def test_changes_that_the_operator_expects_are_so_beside_the_tasks_own(rig):
    rig.task_config["verifier"] = {"expects_changes": ["/usr/bin/git"]}
    planned_one = planned(rig, expects_changes=["/opt/venv"]).task
    assert planned_one.config.verifier.expects_changes == ("/usr/bin/git", "/opt/venv")
    step = TaskStep(name="one", instruction="Do it.", verifier=planned_one.config.verifier)
    task = rig.task().model_copy(update={"steps": (step,)})
    asked = RolloutConfig(**rig.config, expects_changes=("/srv",))
    (again,) = asyncio.run(make_plan(task, asked, rig.planes(), "r1")).task.steps
    assert again.verifier.expects_changes == ("/usr/bin/git", "/opt/venv", "/srv")


def test_the_operators_rule_for_reward_files_replaces_that_of_every_verifier(rig):
    step = TaskStep(name="one", instruction="Do it.", verifier=rig.task().config.verifier)
    task = rig.task().model_copy(update={"steps": (step,)})
    for asked, expected in ((None, "strict"), ("open", "open")):
        config = RolloutConfig(**rig.config, reward_files=asked)
        made = asyncio.run(make_plan(task, config, rig.planes(), "r1")).task
        assert made.config.verifier.reward_files == expected
        assert made.steps[0].verifier.reward_files == expected


def test_only_the_solution_goes_on_from_what_another_agent_did(rig, tmp_path):
    parts = TaskParts(prior=tmp_path / "trajectory.json")
    task = rig.task().model_copy(update={"own_parts": parts})
    with pytest.raises(TaskError, match=r"trajectory\.json: .* agent 'fake' cannot load"):
        asyncio.run(make_plan(task, RolloutConfig(**rig.config), rig.planes(), "r1"))
    rig.agent = FakeAgent(needs=AgentNeeds(solution=True))
    assert asyncio.run(make_plan(task, RolloutConfig(**rig.config), rig.planes(), "r1")).solution
