"""The plan of a rollout: effective values, and the origin of each."""

import asyncio

from benchflow_contracts import (
    AgentNeeds,
    Bundle,
    Role,
    TaskParts,
)
from benchflow_kernel import Deadlines, RolloutConfig, Scene
from benchflow_kernel.resolve import Contributions, Origin, Plan, make_plan, resolve


def plan_of(rig, **config) -> Plan:
    chosen = RolloutConfig(**{**rig.config, **config})
    return asyncio.run(make_plan(rig.task(), chosen, rig.planes(), "r1"))


def test_a_rollout_looks_up_the_parts_of_its_task_once(rig, monkeypatch):
    original, roots = TaskParts.of, []

    def of(root):
        roots.append(root)
        return original(root)

    monkeypatch.setattr(TaskParts, "of", of)
    tree = rig.run()
    assert tree.status == "completed"
    assert roots == [rig.task().path]


def shown(plan: Plan) -> dict[str, tuple[object, str]]:
    return {each.name: (each.value, str(each.origin)) for each in plan.settings()}


def test_each_value_names_the_task_the_config_or_its_default(rig):
    rig.task_config["verifier"] = {"timeout_sec": 40, "isolation": "hermetic"}
    found = shown(plan_of(rig, isolation="twin", deadlines=Deadlines(start=7)))
    assert found["verifier.timeout_sec"] == (40, "task.toml:verifier.timeout_sec")
    assert found["verifier.isolation"] == ("twin", "RolloutConfig.isolation")
    assert found["deadlines.start"] == (7, "RolloutConfig.deadlines.start")
    assert found["deadlines.teardown"] == (60, "default")
    assert found["role.agent.agent"] == ("fake", "Role.agent")


def test_a_deadline_that_the_task_extends_names_the_tasks_key(rig):
    rig.task_config["agent"] = {"timeout_sec": 9000}
    found = shown(plan_of(rig))
    assert found["deadlines.execute"] == (9000, "task.toml:agent.timeout_sec")
    assert found["role.agent.timeout_sec"] == (9000, "task.toml:agent.timeout_sec")


def test_the_environment_and_the_agent_are_origins_of_what_they_contribute(rig):
    plan = plan_of(rig)
    assert plan.spec.env["FAKE_WORLD_TASK"] == "demo"
    assert shown(plan)["sandbox.env.FAKE_WORLD_TASK"][1].startswith("environment ")
    needs = AgentNeeds(bundles=(Bundle(source="/a", target="/b", key="k"),))
    given = Contributions(needs=[(Role(agent="fake"), needs)])
    config = RolloutConfig(**rig.config)
    found = shown(resolve(rig.task(), config, given, rig.planes(), "r1"))
    assert found["sandbox.bundles"] == (
        [{"source": "/a", "target": "/b", "key": "k"}],
        "agent fake",
    )


def test_values_of_variables_are_masked_unless_the_task_has_them_in_its_file(rig, monkeypatch):
    monkeypatch.setenv("LOWERED_KEY", "abc")
    rig.task_config["environment"] = {
        "env": {"OPEN": "shown"},
        "host_env": {"KEY": "${LOWERED_KEY}"},
    }
    role = Role(agent="fake", env={"OWN": "xyz"})
    plan = plan_of(rig, forward_env=("LOWERED_KEY",), scenes=(Scene(roles=(role,)),))
    assert (plan.spec.env["KEY"], plan.spec.env["OPEN"]) == ("abc", "shown")
    found = shown(plan)
    assert found["sandbox.env.OPEN"][0] == "shown"
    assert found["sandbox.env.KEY"] == ("[redacted]", "$LOWERED_KEY")
    assert found["role.agent.env.OWN"][0] == "[redacted]"


def test_origins_of_the_config_are_those_that_the_caller_gives(rig):
    config = RolloutConfig(**rig.config, offline=True)
    given = Contributions(origins={"offline": Origin("flag", "--offline")})
    found = shown(resolve(rig.task(), config, given, rig.planes(), "r1"))
    assert found["sandbox.network"] == ("none", "--offline")
    assert found["verifier.network"] == ("none", "--offline")
