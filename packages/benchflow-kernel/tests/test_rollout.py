import asyncio
import json

import pytest
from benchflow_contracts import (
    AgentError,
    AgentExitError,
    AgentNeeds,
    AgentTimeoutError,
    EnvironmentError_,
    ModelEndpoint,
    Mount,
    ReadinessProbe,
    RewardError,
    Role,
    SandboxError,
    Scene,
    StoreError,
    TaskStep,
    Turn,
    VerifyResult,
)
from benchflow_contracts.testing.fakes import (
    Act,
    Crash,
    FakeAgent,
    FakeReward,
    Hang,
    Pose,
    Say,
    Stop,
    ask_with_options,
)
from benchflow_kernel import EventLog, fold, read_events

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


def test_the_box_has_what_every_agent_needs_and_the_grading_box_has_none_of_it(rig):
    rig.task_config["environment"] = {"env": {"TZ": "UTC"}, "memory_mb": 512}
    rig.agent = FakeAgent(
        [[Say("ok")]],
        needs=AgentNeeds(
            mounts=(Mount(source="/opt/a", target="/opt/a"),),
            model=ModelEndpoint(upstream="http://127.0.0.1:9"),
            env={"BASE_URL": "http://127.0.0.1:8721"},
        ),
    )
    specs = []
    rig.rewards = [FakeReward(lambda node: specs.append(node.state.grading_spec) or 1.0)]
    rig.run()
    spec = rig.provider.created[0].spec
    assert spec.network == "model-only"
    assert spec.env == {
        "BASE_URL": "http://127.0.0.1:8721",
        "TZ": "UTC",
        "FAKE_WORLD_TASK": "demo",
    }
    assert spec.limits.memory_mb == 512
    assert len(spec.mounts) == 1
    (grading,) = specs
    assert grading.env == {"TZ": "UTC", "FAKE_WORLD_TASK": "demo"}
    assert (grading.network, grading.model, grading.mounts) == ("none", None, ())


def test_a_credential_never_reaches_the_record(rig):
    rig.config["model"] = ModelEndpoint(
        upstream="https://me:hunter2@models.example/v1?key=hunter2",
        headers={"authorization": "Bearer hunter2"},
    )
    role = Role(agent="fake", env={"TOKEN": "hunter2"})
    rig.config["scenes"] = (Scene(roles=(role,)),)
    tree = rig.run()
    assert "hunter2" not in (rig.directory / "events.jsonl").read_text()
    assert "hunter2" not in json.dumps(tree.meta)
    assert tree.meta["config"]["model"]["upstream"] == "https://models.example/v1"


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


FAULTS = [
    ("provider", "create", SandboxError, "sandbox"),
    ("provider", "upload", SandboxError, "sandbox"),
    ("environment", "prepare", EnvironmentError_, "environment"),
    ("environment", "provision", EnvironmentError_, "environment"),
    ("environment", "readiness", EnvironmentError_, "environment"),
    ("environment", "query", EnvironmentError_, "environment"),
    ("agent", "needs", AgentError, "agent"),
    ("agent", "connect", AgentError, "agent"),
    ("agent", "prompt", AgentError, "agent"),
]


def break_at(rig, plane, operation, error):
    if plane == "environment":
        rig.environment_options["fail_on"] = {operation: error}
    else:
        getattr(rig, plane).faults.fail_on[operation] = error


@pytest.mark.parametrize(("plane", "operation", "kind", "boundary"), FAULTS)
@pytest.mark.parametrize("plain", [True, False])
def test_a_failure_at_any_phase_is_one_boundary_and_leaves_nothing(
    rig, plane, operation, kind, boundary, plain
):
    (rig.task_dir / "environment/files").mkdir(parents=True)
    break_at(rig, plane, operation, RuntimeError("boom") if plain else kind("boom"))
    rig.with_environment = True
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == boundary
    assert "boom" in tree.error.message
    assert [leaf.reward for leaf in tree.leaves] == [None]
    assert rig.rewards[0].nodes == []
    assert rig.events[-1].kind == "rollout_finished"


@pytest.mark.parametrize(
    ("plane", "operation", "boundary"),
    [
        ("provider", "create", "sandbox"),
        ("environment", "provision", "environment"),
        ("environment", "readiness", "environment"),
        ("environment", "query", "environment"),
        ("agent", "needs", "agent"),
        ("agent", "connect", "agent"),
    ],
)
def test_a_phase_that_hangs_ends_at_its_deadline(rig, plane, operation, boundary):
    rig.deadlines(start=0.05, provision=0.05, connect=0.05)
    if plane == "environment":
        rig.environment_options["hang_on"] = {operation}
    else:
        getattr(rig, plane).faults.hang_on.add(operation)
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == boundary
    assert "0.05 s" in tree.error.message
    assert tree.leaves[0].reward is None


@pytest.mark.parametrize(
    ("plane", "operation"),
    [
        ("provider", "create"),
        ("environment", "provision"),
        ("environment", "readiness"),
        ("environment", "query"),
        ("agent", "needs"),
        ("agent", "connect"),
        ("agent", "prompt"),
        ("reward", "score"),
    ],
)
def test_cancellation_at_any_phase_tears_down_and_is_raised_again(rig, plane, operation):
    reached = asyncio.Event()
    target = rig.rewards[0] if plane == "reward" else None

    async def main():
        if plane == "environment":
            make = rig._environment

            def hooked():
                environment = make()
                environment.faults = Watched(operation, reached)
                return environment

            rig._environment = hooked
        else:
            owner = target or getattr(rig, plane)
            owner.faults = Watched(operation, reached)
        task = asyncio.get_running_loop().create_task(rig.run_async())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    rig.check_clean()
    tree = fold(read_events(rig.directory / "events.jsonl").events)
    rig.check_record(tree)
    assert tree.status == "cancelled"
    assert [leaf.reward for leaf in tree.leaves] == [None]


class Watched:
    """Faults that say when an operation was reached, and hold it there."""

    def __init__(self, operation, reached):
        self.operation, self.reached = operation, reached
        self.fail_on, self.hang_on = {}, set()

    async def strike(self, operation):
        if operation == self.operation:
            self.reached.set()
            await asyncio.Event().wait()

    def strike_now(self, operation):
        pass


def test_a_hanging_teardown_ends_at_its_deadline_and_every_layer_is_attempted(rig):
    rig.deadlines(teardown=0.05)
    rig.environment_options["hang_on"] = {"teardown"}
    tree = rig.run()
    assert rig.provider.operations[-1] == "teardown"
    assert tree.status == "completed"
    assert tree.leaves[0].reward == 1.0
    assert tree.error.boundary == "environment"


def test_a_failing_teardown_does_not_mask_the_first_error(rig):
    rig.environment_options["fail_on"] = {"teardown": RuntimeError("teardown broke")}
    rig.agent.faults.fail_on["prompt"] = AgentError("died")
    tree = rig.run()
    assert tree.error.message == "died"


def test_a_sandbox_that_cannot_be_torn_down_is_reported_and_keeps_its_verdict(rig):
    rig.provider.faults.fail_on["teardown"] = SandboxError("stuck")
    tree = asyncio.run(rig.run_async())
    assert tree.status == "completed"
    assert tree.error.message == "stuck"
    assert tree.leaves[0].reward == 1.0


def test_cancellation_during_the_teardown_waits_for_it(rig):
    order = []

    async def main():
        entered, release = asyncio.Event(), asyncio.Event()
        make = rig._environment

        def slow():
            environment = make()

            async def teardown():
                entered.set()
                await release.wait()
                order.append("environment gone")
                environment.log.append("teardown")

            environment.teardown = teardown
            return environment

        rig._environment = slow
        task = asyncio.get_running_loop().create_task(rig.run_async())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert order == ["environment gone"]
    rig.check_clean()
    assert fold(read_events(rig.directory / "events.jsonl").events).status == "cancelled"


def test_an_agent_that_runs_out_of_time_is_graded_on_what_it_left(rig):
    role = Role(agent="fake", timeout_sec=0.05)
    rig.config["scenes"] = (Scene(roles=(role,)),)
    rig.agent = FakeAgent([[Act(write_file), Say("next"), Hang()]])
    rig.rewards = [
        FakeReward(
            lambda node: float(node.state.sandbox.files.read("/workspace/out.txt") == b"hello\n")
        )
    ]
    tree = rig.run()
    (leaf,) = tree.leaves
    assert tree.status == "completed"
    assert leaf.reward == 1.0
    assert leaf.error.type == "AgentTimeoutError"


def test_an_agent_whose_program_fails_is_graded_too_and_gets_no_further_turn(rig):
    rig.user_options["nudges"] = ["go on"]
    rig.task_config["agent"] = {"max_turns": 3}
    rig.agent.faults.fail_on["prompt"] = AgentExitError("exit code 3")
    tree = rig.run()
    (leaf,) = tree.leaves
    assert tree.status == "completed"
    assert leaf.reward == 1.0
    assert leaf.error.type == "AgentExitError"


def test_the_execute_deadline_is_graded_too(rig):
    rig.deadlines(execute=0.05)
    rig.agent = FakeAgent([[Hang()]])
    tree = rig.run()
    assert tree.status == "completed"
    assert tree.leaves[0].reward == 1.0
    assert tree.leaves[0].error.type == "AgentTimeoutError"


def test_a_user_who_holds_up_the_turns_is_not_the_agents_fault(rig):
    rig.deadlines(execute=0.05)
    rig.task_config["agent"] = {"max_turns": 2}
    rig.user_options["hang_on"] = {"nudge"}
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == "environment"
    assert rig.rewards[0].nodes == []


def test_an_agent_that_cannot_be_ended_is_never_scored_beside(rig):
    class Immortal(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            session = await super().connect(sandbox, role, resume=resume, log_dir=log_dir)
            session.aclose = self._refuse
            return session

        async def _refuse(self):
            self.sessions[0].closed = True
            raise AgentError("still alive")

    rig.agent = Immortal([[Say("ok")]])
    tree = rig.run()
    assert tree.error.message == "still alive"
    assert rig.rewards[0].nodes == []


def test_a_connection_that_is_late_is_a_fault_and_not_graded(rig):
    rig.agent.faults.fail_on["connect"] = AgentTimeoutError("slow")
    tree = rig.run()
    assert tree.status == "failed"
    assert rig.rewards[0].nodes == []


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "max_turn_requests"])
def test_an_agent_that_stops_early_is_graded_and_gets_no_further_turn(rig, reason):
    rig.user_options["nudges"] = ["go on"]
    rig.task_config["agent"] = {"max_turns": 3}
    rig.agent = FakeAgent([[Say("no"), Stop(reason)], [Say("yes")]])
    tree = rig.run()
    (leaf,) = tree.leaves
    assert leaf.reward == 1.0
    assert reason in leaf.error.message
    assert len(leaf.steps) == 1


def test_a_crash_of_the_agent_is_never_graded(rig):
    rig.agent = FakeAgent([[Say("x"), Crash(AgentError("segfault"))]])
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == "agent"
    assert rig.rewards[0].nodes == []


@pytest.mark.parametrize(
    "verdict",
    [None, RewardError("broken"), ZeroDivisionError("oops"), "not a result"],
)
def test_no_fault_of_a_reward_becomes_a_number(rig, verdict):
    class Odd:
        name = "reward"

        async def score(self, node):
            if isinstance(verdict, Exception):
                raise verdict
            return VerifyResult.unscored("no") if verdict is None else verdict

    rig.rewards = [Odd(), FakeReward(0.5, name="side")]
    tree = rig.run()
    (leaf,) = tree.leaves
    assert leaf.reward is None
    assert leaf.results["reward"].error
    assert leaf.results["side"].reward == 0.5
    assert tree.status == "completed"


def test_a_reward_that_hangs_is_unscored_at_the_verify_deadline(rig):
    rig.deadlines(verify=0.05)
    rig.rewards = [FakeReward(hang_on={"score"}), FakeReward(1.0, name="side")]
    tree = rig.run()
    assert tree.leaves[0].reward is None
    assert "deadline" in tree.leaves[0].results["reward"].error


def test_the_agent_is_dead_and_the_state_is_read_when_a_reward_is_asked(rig):
    rig.environment_options["tables"] = {"mail": [(1, "inbox")]}
    seen = []

    def judge(node):
        state = node.state
        seen.append(
            (
                rig.agent.sessions[0].closed,
                state.env_state.databases["/state"]["mail"].rows,
                state.log_dir,
                state.sandbox.alive,
            )
        )
        return 1.0

    rig.rewards = [FakeReward(judge)]
    tree = rig.run()
    assert seen == [(True, ((1, "inbox"),), rig.directory / "verifier", True)]
    assert tree.leaves[0].state is None
    assert tree.leaves[0].env_state is not None


def test_a_reward_that_ends_the_box_itself_is_no_error(rig):
    async def hermetic(node):
        await node.state.sandbox.teardown()
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
