"""What a box reaches, and who acts in it, from phase to phase of its task."""

import asyncio

import pytest
from benchflow_contracts import (
    ExecResult,
    TaskStep,
    VerifyResult,
)
from benchflow_kernel import GroupBranch, ModelConfig, RolloutConfig
from benchflow_kernel.resolve import make_plan
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    Act,
    FakeAgent,
    FakeReward,
    FakeSandbox,
    FakeSandboxProvider,
    Say,
)

MODES = frozenset({"none", "model-only", "allowlist", "public"})
DAEMON = "while :; do sleep 9; done"
DONE = ExecResult(exit_code=0, stdout="", stderr="", duration_sec=0)


class Unswitched(FakeSandbox):
    switch_network = None


class Watched:
    """Notes in each phase the network, the user, and whether the agent's daemon lives.

    The task's environment is public, its tests are too, and they run in the agent's box.
    """

    def __init__(self, rig) -> None:
        self.rig = rig
        self.networks: list[str] = []
        self.users: list[str] = []
        self.daemon = None
        self.killed_before: str | None = None
        rig.with_environment = False
        self.provide(FakeSandbox)
        rig.task_config["environment"] = {
            "network": "public",
            "setup_commands": [{"command": "setup"}],
        }
        rig.task_config["verifier"] = {"network": "public", "isolation": "shared"}
        rig.rewards = [FakeReward(1.0)]
        rig.rewards[0].score = self._score
        rig.agent = FakeAgent([[Act(self._act), Say("done")]])

    def provide(self, sandbox_type) -> None:
        self.rig.provider = FakeSandboxProvider(
            capabilities=FAKE_WITHOUT_LIVE.model_copy(update={"network_modes": MODES}),
            files={f"/home/{user}/.keep": "" for user in ("alice", "bob")},
            sandbox_type=sandbox_type,
        )
        self.rig.provider.on("setup", self._setup)

    def note(self, phase, sandbox) -> None:
        spec = sandbox.spec
        hosts = "".join(f" {host}" for host in spec.allowed_hosts)
        self.networks.append(f"{phase}: {spec.network}{hosts}")
        self.users.append(f"{phase}: {spec.user}")
        if self.daemon is not None and not self.daemon.group.alive and not self.killed_before:
            self.killed_before = phase

    def _setup(self, call) -> ExecResult:
        self.note("setup", call.sandbox)
        return DONE

    async def _act(self, session) -> str:
        self.note("agent", session.sandbox)
        self.daemon = self.daemon or await session.sandbox.spawn(DAEMON)
        return ""

    async def _score(self, node, evidence):
        world = evidence.world
        self.note("end", world.sandbox)
        await world.before_tests()
        self.note("tests", world.sandbox)
        return await FakeReward(1.0).score(node, evidence)


@pytest.fixture
def watched(rig):
    return Watched(rig)


def test_the_agents_network_and_user_hold_for_its_time_alone(watched):
    watched.rig.task_config["agent"] = {"network": "none", "user": "alice"}
    assert watched.rig.run().status == "completed"
    assert watched.networks == ["setup: public", "agent: none", "end: none", "tests: public"]
    assert watched.users == ["setup: agent", "agent: alice", "end: agent", "tests: agent"]


def test_a_provider_gets_the_spec_of_the_plan_but_for_what_only_a_run_knows(watched, with_model):
    rig = watched.rig
    with_model(rig)
    rig.task_config["agent"] = {"network": "model-only"}
    rig.agent = FakeAgent([[Say("one")], [Say("two")]])
    specs = []
    create = rig.provider.create

    async def noted(spec, **more):
        specs.append(spec)
        return await create(spec, **more)

    rig.provider.create = noted
    rig.config |= {
        "scenes": [{"roles": [{"agent": "fake"}], "turns": [{}, {"prompt": "next"}]}],
        "branch": GroupBranch(n=2, at=1),
    }
    assert rig.run().status == "completed"
    task, config = rig.task(), RolloutConfig.model_validate(rig.config)
    plan = asyncio.run(make_plan(task, config, rig.planes(), "r1"))
    root, *children = specs
    assert len(children) == 2
    decided = {"network", "allowed_hosts", "doors"}
    for spec in (root, *children):
        assert spec.model_dump(exclude=decided) == plan.spec.model_dump(exclude=decided)
        assert [door.port for door in spec.doors] == [door.port for door in plan.spec.doors]
        assert spec.doors[0].endpoint in [route.endpoint for route in rig.gateway.routes]
    assert [root.network, *(child.network for child in children)] == ["public", *["model-only"] * 2]


def test_what_an_agent_left_is_dead_before_more_is_reached_and_its_files_stay(watched):
    async def write(session) -> str:
        await session.sandbox.exec("echo kept > /workspace/file")
        return ""

    watched.rig.task_config["agent"] = {"network": "none"}
    watched.rig.agent = FakeAgent([[Act(watched._act), Act(write), Say("done")]])
    watched.rig.run()
    assert watched.killed_before == "tests"
    (box,) = watched.rig.provider.created
    assert box.files.read("/workspace/file", user="root") == b"kept\n"


def test_what_an_agent_left_lives_on_where_no_more_is_reached(watched):
    watched.rig.task_config["agent"] = {"network": "public"}
    watched.rig.task_config["verifier"] |= {"network": "allowlist", "allowed_hosts": ["a.org"]}
    watched.rig.run()
    assert watched.networks[-1] == "tests: allowlist a.org"
    assert watched.killed_before is None
    assert "restore" not in watched.rig.provider.operations


def test_a_task_of_one_network_and_one_user_is_never_switched(watched):
    watched.rig.run()
    assert not {"switch_network", "switch_user"} & set(watched.rig.provider.operations)
    assert watched.rig.provider.created[0].spec.switches == ()


def test_each_step_has_its_own_network_and_user_after_a_setup_in_the_environments(watched):
    steps = [
        {"network": "none", "user": "alice"},
        {"network": "allowlist", "allowed_hosts": ("a.org",), "user": "bob"},
    ]
    watched.rig.steps = tuple(
        TaskStep(
            name=f"s{index}",
            instruction="do",
            agent=agent,
            verifier=watched.rig.task_config["verifier"],
            setup_commands=({"command": "setup", "user": ""},),
        )
        for index, agent in enumerate(steps)
    )
    watched.rig.task_config["environment"]["setup_commands"] = ()
    watched.rig.run()
    assert watched.networks == [
        *("setup: public", "agent: none", "end: none", "tests: public"),
        *("setup: public", "agent: allowlist a.org", "end: allowlist a.org", "tests: public"),
    ]
    assert [user for user in watched.users if not user.startswith(("end", "tests"))] == [
        *("setup: alice", "agent: alice", "setup: bob", "agent: bob")
    ]
    assert watched.killed_before == "tests"


def test_what_a_step_brings_where_more_is_reached_is_not_counted_as_the_agents(watched):
    told = []

    async def look(_node, evidence):
        changes = await evidence.world.sandbox.changed_files()
        told.append({*changes.added, *changes.changed})
        return VerifyResult(reward=1.0)

    watched.rig.task_config["environment"]["setup_commands"] = ()
    watched.rig.config["isolation"] = "twin"
    watched.rig.rewards[0].score = look
    watched.rig.steps = tuple(
        TaskStep(
            name=name,
            instruction="do",
            agent={"network": "none"},
            setup_commands=({"command": f"echo 1 > /etc/{name}"},),
        )
        for name in ("first", "second")
    )
    watched.rig.run()
    assert watched.rig.provider.operations.count("restore") == 1
    assert told == [set(), set()]


def test_a_child_of_a_fork_begins_in_the_agents_network(watched):
    made = []
    create = watched.rig.provider.create

    async def noted(spec, **rest):
        made.append(spec.network)
        return await create(spec, **rest)

    watched.rig.provider.create = noted
    watched.rig.task_config["agent"] = {"network": "none", "user": "alice"}
    watched.rig.config["branch"] = GroupBranch(n=2, at=0)
    watched.rig.run()
    assert made == ["public", "none", "none"]
    assert watched.networks.count("agent: none") == 2
    assert watched.users.count("agent: alice") == 2


def test_no_network_leaves_an_agent_its_model(watched):
    watched.rig.config["model"] = ModelConfig(base_url="http://127.0.0.1:9/v1")
    watched.rig.task_config["agent"] = {"network": "none"}
    watched.rig.run()
    assert watched.networks[1] == "agent: model-only"


def test_offline_no_phase_has_a_network(watched):
    watched.rig.task_config["agent"] = {"network": "public"}
    watched.rig.config["offline"] = True
    watched.rig.run()
    assert {network.partition(": ")[2] for network in watched.networks} == {"none"}


@pytest.mark.parametrize("agent", [{"network": "none"}, {"user": "alice"}])
def test_a_sandbox_that_cannot_be_switched_refuses_the_task_before_anything_runs(watched, agent):
    watched.provide(Unswitched)
    watched.rig.task_config["agent"] = agent
    tree = watched.rig.run()
    assert tree.error.type == "SandboxUnsupportedError"
    assert "while it runs" in tree.error.message
    assert watched.networks == []


def test_a_network_that_a_later_phase_cannot_have_is_refused_before_anything_runs(watched):
    watched.rig.provider._capabilities = FAKE_WITHOUT_LIVE
    watched.rig.task_config["environment"]["network"] = "none"
    watched.rig.task_config["agent"] = {"network": "public"}
    tree = watched.rig.run()
    assert tree.error.type == "SandboxUnsupportedError"
    assert watched.rig.provider.created == []


def test_a_user_that_is_not_there_ends_the_rollout_before_its_agent(watched):
    watched.rig.task_config["agent"] = {"user": "carol"}
    tree = watched.rig.run()
    assert tree.error.type == "SandboxError"
    assert "carol" in tree.error.message
    assert watched.rig.agent.sessions == []


@pytest.mark.parametrize("operation", ["switch_network", "snapshot", "restore"])
def test_tests_never_run_in_a_box_whose_network_could_not_be_changed(watched, operation):
    async def break_it(session) -> str:
        watched.rig.provider.faults.fail_on[operation] = RuntimeError("broken")
        return ""

    watched.rig.task_config["agent"] = {"network": "none"}
    watched.rig.agent = FakeAgent([[Act(break_it), Say("done")]])
    tree = watched.rig.run()
    assert "tests: public" not in watched.networks
    assert all(node.reward is None for node in tree.nodes)


def test_an_environment_is_not_ended_for_the_sake_of_a_network(watched):
    watched.rig.with_environment = True
    watched.rig.task_config["agent"] = {"network": "none"}
    tree = watched.rig.run()
    assert tree.error.type == "TaskError"
    assert "task.toml:agent.network" in tree.error.message
    assert watched.rig.provider.created == []
