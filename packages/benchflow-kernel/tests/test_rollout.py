import asyncio
import hashlib
import json

import pytest
from benchflow_contracts import (
    AgentNeeds,
    Bundle,
    Door,
    ReadinessProbe,
    Role,
    RolloutIdentity,
    SandboxMade,
    StoreError,
    TaskStep,
)
from benchflow_kernel import (
    EventLog,
    ModelConfig,
    RolloutConfig,
    Scene,
    Turn,
    fold,
    read_events,
    run_rollout,
)
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    Act,
    FakeAgent,
    FakeReward,
    FakeSandbox,
    FakeSandboxProvider,
    Pose,
    Say,
    ask_with_options,
)

ALL_PHASES = [
    "setup",
    "start",
    "provision",
    "readiness",
    "connect",
    "execute",
    "verify",
    "teardown",
]


async def write_file(session) -> str:
    result = await session.sandbox.exec("echo hello > out.txt")
    return f"exit {result.exit_code}"


def test_the_phases_come_in_order_and_each_is_an_event(rig):
    tree = rig.run()
    assert rig.phases == ALL_PHASES
    assert tree.status == "completed"
    assert tree.error is None
    assert tree.leaves[0].reward == 1.0


def test_a_linear_rollout_is_a_tree_of_degree_one(rig):
    rig.agent = FakeAgent([[Act(write_file), Say("written"), Act(write_file), Say("again")]])
    tree = rig.run()
    assert all(len(node.children) <= 1 for node in tree.nodes)
    assert [node.id for node in tree.nodes] == ["n0", "n1", "n2", "n3"]
    assert tree.leaves[0].steps[0].prompt == "do it"
    assert tree.leaves[0].steps[-1].stop_reason == "end_turn"


def test_files_skills_and_setup_commands_come_before_the_agent(rig):
    (rig.task_dir / "environment/files/workspace").mkdir(parents=True)
    (rig.task_dir / "environment/files/workspace/a.txt").write_text("a")
    (rig.task_dir / "environment/skills/mail").mkdir(parents=True)
    (rig.task_dir / "environment/skills/mail/SKILL.md").write_text("s")
    (rig.task_dir / "solution").mkdir()
    (rig.task_dir / "solution/solve.sh").write_text("x")
    rig.task_config["environment"] = {"setup_commands": [{"command": "cat a.txt > b.txt"}]}
    rig.config["skill_mode"] = "with-skill"
    seen = []

    async def look(session):
        files = session.sandbox.files
        seen.append(
            [
                files.entry(path) is not None
                for path in ("/workspace/b.txt", "/skills/mail/SKILL.md", "/solution")
            ]
        )
        seen.append((session.role.skills_dir, session.role.skills))
        return ""

    rig.agent = FakeAgent([[Act(look), Say("ok")]])
    tree = rig.run()
    assert seen == [[True, True, False], ("/skills", ("mail",))]
    assert tree.leaves[0].step.skills == ("mail",)


def test_the_operators_skills_take_the_place_of_the_tasks(rig, tmp_path):
    (rig.task_dir / "environment/skills/mail").mkdir(parents=True)
    (rig.task_dir / "environment/skills/mail/SKILL.md").write_text("s")
    (tmp_path / "mine/search").mkdir(parents=True)
    (tmp_path / "mine/search/SKILL.md").write_text("s")
    rig.config |= {"skill_mode": "with-skill", "skills_dir": tmp_path / "mine"}
    tree = rig.run()
    assert tree.leaves[0].step.skills == ("search",)


def test_skills_without_the_mode_that_shows_them_are_a_usage_error(rig, tmp_path):
    rig.config["skills_dir"] = tmp_path
    assert rig.run().error.boundary == "usage"


def test_no_skill_hides_the_skills_and_only_the_oracle_sees_the_solution(rig):
    (rig.task_dir / "environment/skills/mail").mkdir(parents=True)
    (rig.task_dir / "solution").mkdir()
    (rig.task_dir / "solution/solve.sh").write_text("x")
    rig.agent = FakeAgent([[Say("ok")]], needs=AgentNeeds(solution=True))
    rig.run()
    files = rig.provider.created[0].files
    assert files.entry("/solution/solve.sh") is not None
    assert files.entry("/skills") is None


def test_a_failing_setup_command_is_the_tasks_fault(rig):
    rig.task_config["environment"] = {"setup_commands": [{"command": "false"}]}
    tree = rig.run()
    assert tree.error.boundary == "task"
    assert "setup_commands.0" in tree.error.message
    assert rig.agent.sessions == []


def test_the_box_has_what_every_agent_needs_and_the_grading_box_has_none_of_it(rig, tmp_path):
    rig.task_config["environment"] = {"env": {"TZ": "UTC"}, "memory_mb": 512}
    rig.agent = FakeAgent(
        [[Say("ok")]],
        needs=AgentNeeds(
            bundles=(Bundle(source=str(tmp_path), target="/opt/a", key="a"),),
            doors=(Door(upstream="http://127.0.0.1:9"),),
            env={"BASE_URL": "http://127.0.0.1:8721"},
        ),
    )
    specs = []
    rig.rewards = [FakeReward(lambda _, evidence: specs.append(evidence.world.grading_spec) or 1.0)]
    rig.run()
    spec = rig.provider.created[0].spec
    assert spec.network == "model-only"
    assert spec.env == {
        "BASE_URL": "http://127.0.0.1:8721",
        "TZ": "UTC",
        "FAKE_WORLD_TASK": "demo",
    }
    assert spec.limits.memory_mb == 512
    assert len(spec.bundles) == 1
    (grading,) = specs
    assert grading.env == {"TZ": "UTC", "FAKE_WORLD_TASK": "demo"}
    assert (grading.network, grading.doors, grading.bundles) == ("none", (), ())


def test_the_record_has_the_identity_of_the_rollout(rig):
    config = RolloutConfig(**rig.config)
    identity = RolloutIdentity(rollout="r", environment="office")
    tree = asyncio.run(run_rollout(rig.task(), config, rig.planes(), identity=identity))
    assert tree.meta["identity"]["environment"] == "office"


def test_a_credential_never_reaches_the_record(rig, monkeypatch):
    monkeypatch.setenv("BENCHFLOW_API_KEY", "hunter2")
    rig.config["model"] = ModelConfig(base_url="https://me:hunter2@models.example/v1?key=hunter2")
    role = Role(agent="fake", env={"TOKEN": "hunter2"})
    rig.config["scenes"] = (Scene(roles=(role,)),)
    tree = rig.run()
    assert "hunter2" not in (rig.directory / "events.jsonl").read_text()
    assert "hunter2" not in json.dumps(tree.meta)
    assert tree.meta["config"]["model"]["base_url"] == "https://models.example/v1"


@pytest.mark.parametrize(
    ("asked", "steps", "told"),
    [(None, 0, "hermetic"), ("twin", 0, "twin"), ("twin", 1, None)],
)
def test_the_record_tells_how_the_task_is_graded_unless_each_step_has_a_way_of_its_own(
    rig, asked, steps, told
):
    rig.config["isolation"] = asked
    rig.steps = (TaskStep(name="a", instruction="do"),) * steps
    assert rig.run().meta["grading"] == told


def test_the_agent_is_never_started_in_a_world_that_is_not_ready(rig):
    rig.environment_options["ready"] = ReadinessProbe(
        ready=False, checked={"http://127.0.0.1:1/health": False}, error="refused"
    )
    tree = rig.run()
    assert rig.agent.sessions == []
    assert tree.error.type == "ReadinessError"
    assert "127.0.0.1:1/health" in tree.error.message
    assert rig.phases == ["setup", "start", "provision", "readiness", "teardown"]


def test_the_agent_is_dead_and_the_state_is_read_when_a_reward_is_asked(rig):
    rig.environment_options["tables"] = {"mail": [(1, "inbox")]}
    seen = []

    def judge(node, evidence):
        seen.append(
            (
                rig.agent.sessions[0].closed,
                node.env_state.databases["/state"]["mail"].rows,
                evidence.log_dir,
                evidence.world.sandbox.alive,
            )
        )
        return 1.0

    rig.rewards = [FakeReward(judge)]
    tree = rig.run()
    assert seen == [(True, ((1, "inbox"),), rig.directory / "verifier", True)]
    assert tree.leaves[0].env_state is not None


def test_a_reward_that_ends_the_box_itself_is_no_error(rig):
    async def hermetic(_node, evidence):
        await evidence.world.sandbox.teardown()
        return 1.0

    rig.rewards = [FakeReward(hermetic)]
    assert rig.run().error is None


def test_an_ask_goes_to_the_user_and_its_answer_opens_the_next_step(rig):
    rig.agent = FakeAgent([[Pose(ask_with_options("which?", "a", "b")), Say("ok")]])
    tree = rig.run()
    asked, answered = tree.leaves[0].steps
    assert asked.ask.questions[0].text == "which?"
    assert answered.answer.selected == {"q1": ("a",)}
    assert rig.users[0].seen == [asked]


def test_a_user_that_fails_ends_the_rollout_and_is_not_blamed_on_the_agent(rig):
    rig.user_options["fail_on"] = {"answer": RuntimeError("no model")}
    rig.agent = FakeAgent([[Pose(ask_with_options("which?", "a", "b")), Say("ok")]])
    tree = rig.run()
    assert tree.error.boundary == "environment"
    assert "no model" in tree.error.message


def test_nudges_follow_until_the_user_or_the_limit_stops(rig):
    rig.user_options["nudges"] = ["more", "even more", "too much"]
    rig.task_config["agent"] = {"max_turns": 3, "prompt_prefix": "Hi. "}
    rig.agent = FakeAgent([[Say("1")], [Say("2")], [Say("3")], [Say("4")]])
    tree = rig.run()
    assert [step.prompt for step in tree.leaves[0].steps] == ["Hi. do it", "more", "even more"]
    assert rig.agent.sessions[0].prompts == ["Hi. do it", "more", "even more"]


def test_two_roles_have_a_session_each_and_a_redeclared_role_a_new_one(rig):
    planner = FakeAgent([[Say("plan")], [Say("review")]], name="planner")
    solver = FakeAgent([[Say("solved")]], name="solver")
    rig.agents = {"planner": planner, "solver": solver}
    plan, solve = Role(name="plan", agent="planner"), Role(name="solve", agent="solver")
    rig.config["scenes"] = (
        Scene(
            name="one",
            roles=(plan, solve),
            turns=(Turn(role="plan", prompt="plan"), Turn(role="solve")),
        ),
        Scene(name="two", roles=(plan,), turns=(Turn(role="plan", prompt="look"),)),
        Scene(name="three", roles=(plan,), turns=(Turn(role="plan"),), skills=("review",)),
    )
    tree = rig.run()
    steps = tree.leaves[0].steps
    assert [(step.role, step.message) for step in steps] == [
        ("plan", "plan"),
        ("solve", "solved"),
        ("plan", "review"),
        ("plan", "plan"),
    ]
    assert steps[-1].skills == ("review",)
    assert len(planner.sessions) == 2
    assert all(session.closed for session in [*planner.sessions, *solver.sessions])
    logs = [session.log_dir.relative_to(rig.directory).as_posix() for session in planner.sessions]
    assert logs == ["agent", "agent/3-plan"]


@pytest.mark.parametrize(
    ("change", "boundary"),
    [
        ({"scenes": (Scene(roles=(Role(agent="fake"),), turns=(Turn(role="who"),)),)}, "usage"),
        ({"scenes": (Scene(roles=(Role(agent="nobody"),)),)}, "usage"),
    ],
)
def test_what_cannot_be_planned_starts_nothing(rig, change, boundary):
    rig.config.update(change)
    tree = rig.run()
    assert tree.error.boundary == boundary
    assert rig.provider.log == []


def test_two_rewards_of_one_name_are_refused(rig):
    rig.rewards = [FakeReward(1.0), FakeReward(0.0)]
    assert rig.run().error.boundary == "usage"


def test_contradicting_needs_of_two_roles_are_refused(rig):
    rig.agents = {
        name: FakeAgent(name=name, needs=AgentNeeds(env={"X": name})) for name in ("a", "b")
    }
    roles = tuple(Role(name=name, agent=name) for name in ("a", "b"))
    rig.config["scenes"] = (Scene(roles=roles, turns=(Turn(role="a"), Turn(role="b"))),)
    tree = rig.run()
    assert tree.error.boundary == "usage"
    assert "'X'" in tree.error.message


def test_a_directory_with_a_record_is_never_overwritten(rig):
    rig.run()
    with pytest.raises(StoreError, match=r"events\.jsonl"):
        asyncio.run(rig.run_async())


def test_a_log_that_cannot_be_written_still_tears_everything_down(rig, monkeypatch):
    write = EventLog._write

    def full(self, line):
        if b"step_finished" in line:
            self.close()
            raise StoreError("no space")
        write(self, line)

    monkeypatch.setattr(EventLog, "_write", full)
    with pytest.raises(StoreError):
        asyncio.run(rig.run_async())
    rig.check_clean()


def test_what_the_agent_says_cannot_break_the_record(rig):
    nested: object = "x"
    for _ in range(5000):
        nested = [nested]
    moves = [
        Act(write_file, raw_input=raw) for raw in ({"a": "\ud800"}, nested, float("nan"), b"\xff")
    ]
    rig.agent = FakeAgent([[*moves, Say("\ud83d lone")]])
    tree = asyncio.run(rig.run_async())
    rig.check_clean()
    read = read_events(rig.directory / "events.jsonl")
    assert tree.status == "completed"
    assert fold(read.events).status == "completed"


def test_the_tree_tells_what_the_first_sandbox_was_made_from(rig):
    rig.task_config["environment"] = {"image": "made"}
    tree = rig.run()
    digest = f"sha256:{hashlib.sha256(b'made').hexdigest()}"
    assert tree.images == {"main": digest}
    (made,) = [event for event in rig.events if isinstance(event, SandboxMade)]
    assert (made.node, made.images) == (tree.root.id, tree.images)


def test_the_tree_says_how_each_door_of_the_first_sandbox_leads_out(rig):
    class Tunneled(FakeSandbox):
        @property
        def door_paths(self):
            return {door.name: "tunnel" for door in self.spec.doors}

    rig.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE, sandbox_type=Tunneled)
    door = Door(name="tools", upstream="http://127.0.0.1:9")
    rig.agent = FakeAgent([[Say("ok")]], needs=AgentNeeds(doors=(door,)))
    tree = rig.run()
    assert tree.doors == {"tools": "tunnel"}
    (made,) = [event for event in rig.events if isinstance(event, SandboxMade)]
    assert made.doors == tree.doors


def test_a_sandbox_that_cannot_say_what_it_was_made_from_is_not_told_of(rig):
    class Unknown(FakeSandbox):
        image_digests = {}  # noqa: RUF012 - as the host's own root has

    rig.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE, sandbox_type=Unknown)
    assert rig.run().images == {}
