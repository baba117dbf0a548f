"""Tasks of several steps: prompts that are graded one by one."""

from dataclasses import replace
from pathlib import Path

import pytest
from benchflow_contracts import (
    AgentError,
    AgentNeeds,
    Healthcheck,
    SetupCommand,
    TaskAgent,
    TaskParts,
    TaskStep,
    VerifyResult,
)
from benchflow_kernel import step_verdicts
from benchflow_testing.fakes import Act, Crash, FakeAgent, FakeReward, Hang, Say, Stop


def step(name: str, **fields) -> TaskStep:
    return TaskStep(name=name, instruction=f"do {name}", **fields)


def graded(**rewards) -> FakeReward:
    """A reward with one verdict for each step."""

    def score(_node, evidence):
        return rewards[evidence.task.instruction.removeprefix("do ")]

    return FakeReward(score)


def asked(rig) -> list[list[str]]:
    """What each session was prompted with, in the order in which they were opened."""
    return [session.prompts for session in rig.agent.sessions]


def per_step(tree) -> dict[str, float | None]:
    return {name: result.reward for name, (_, result) in step_verdicts(tree.leaves[0]).items()}


async def nothing(_session) -> str:
    return ""


class Sequel(FakeAgent):
    """An agent that plays another script in each session."""

    def __init__(self, *scripts) -> None:
        super().__init__()
        self._players = [FakeAgent([moves]) for moves in scripts]

    async def connect(self, *given, **options):
        session = await self._players[len(self.sessions)].connect(*given, **options)
        self.sessions.append(session)
        return session


@pytest.fixture
def two(rig):
    rig.steps = (step("a"), step("b"))
    rig.rewards = [graded(a=1.0, b=0.5)]
    return rig


def test_each_step_is_a_prompt_to_a_new_session_in_the_same_box(two):
    tree = two.run()
    assert asked(two) == [["do a"], ["do b"]]
    assert len(two.provider.created) == 1
    assert [s.prompt for s in tree.leaves[0].steps] == ["do a", "do b"]


def test_each_verdict_stays_at_the_node_where_its_step_ended(two):
    tree = two.run()
    first, last = tree.leaves[0].path[1:]
    assert {name: r.reward for name, r in first.results.items()} == {"a/reward": 1.0}
    assert {name: r.reward for name, r in last.results.items()} == {
        "b/reward": 0.5,
        "reward": 0.75,
    }


def test_the_return_is_the_mean_and_its_record_tells_every_step(two):
    verdict = two.run().leaves[0].results["reward"]
    assert verdict.reward == 0.75
    assert [(one["name"], one["reward"]) for one in verdict.meta["steps"]] == [("a", 1), ("b", 0.5)]
    assert "stopped" not in verdict.meta


def test_with_final_the_last_verdict_is_the_return(two):
    two.task_config["step_reward"] = "final"
    assert two.run().leaves[0].reward == 0.5


def test_a_grader_sees_the_step_and_whether_the_box_is_still_needed(two):
    seen = []

    def score(_node, evidence):
        task, continues = evidence.task, evidence.world.continues
        seen.append((task.instruction, task.steps, continues, evidence.log_dir))
        return 1.0

    two.rewards = [FakeReward(score)]
    two.run()
    logs = [two.directory / "steps" / name / "verifier" for name in "ab"]
    assert seen == [("do a", (), True, logs[0]), ("do b", (), False, logs[1])]


def test_steps_may_be_graded_by_rewards_of_their_own(two):
    own = [[FakeReward(0.25), FakeReward(7.0, name="signal")], [FakeReward(0.75)]]
    plain = two.planes()
    two.planes = lambda: replace(plain, step_rewards=own)
    tree = two.run()
    assert tree.leaves[0].reward == 0.5
    assert tree.index["n1"].results["a/signal"].reward == 7.0


def test_the_agent_is_dead_before_its_step_is_graded(two):
    alive = []
    two.rewards = [FakeReward(lambda *_: alive.append([s.closed for s in two.agent.sessions]) or 1)]
    two.run()
    assert alive == [[True], [True, True]]


def test_the_phases_of_a_step_come_again_for_the_next_one(two):
    two.run()
    once = ["setup", "start", "provision", "readiness"]
    assert two.phases == [
        *once,
        *("connect", "execute", "verify"),
        *("setup", "execute", "verify"),
        "teardown",
    ]


def test_files_commands_and_healthcheck_of_a_step_come_before_its_prompt(two, tmp_path: Path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "given.txt").write_text("given")
    two.steps = (
        step("a"),
        step(
            "b",
            parts=TaskParts(workdir_files=tmp_path / "files"),
            setup_commands=(SetupCommand(command="cat given.txt > made.txt", user=""),),
            healthcheck=Healthcheck(command="cat made.txt", interval_sec=0.001),
        ),
    )
    seen = {}

    async def look(session) -> str:
        files = session.sandbox.files
        names = ("/workspace/given.txt", "/workspace/made.txt")
        seen[session.prompts[-1]] = [files.entry(name) is not None for name in names]
        return ""

    two.agent = FakeAgent([[Act(look), Say("ok")]])
    two.run()
    assert seen == {"do a": [False, False], "do b": [True, True]}


def test_only_the_oracle_sees_a_solution_and_only_that_of_its_step(two, tmp_path: Path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.sh").write_text("")
    two.steps = tuple(step(n, parts=TaskParts(solution=tmp_path / n)) for n in "ab")
    seen = []

    async def look(session) -> str:
        files = session.sandbox.files
        seen.append([name for name in "ab" if files.entry(f"/solution/{name}.sh") is not None])
        return ""

    two.agent = FakeAgent([[Act(look)]], needs=AgentNeeds(solution=True))
    two.run()
    assert seen == [["a"], ["b"]]
    seen.clear()
    two.again("plain")
    two.agent = FakeAgent([[Act(look)]])
    two.run()
    assert seen == [[], []]


def test_what_a_verifier_left_in_the_agents_box_is_gone_before_the_next_prompt(two):
    async def score(_node, evidence):
        await evidence.world.sandbox.exec("mkdir -p /tests /logs/verifier", user="root")
        await evidence.world.sandbox.exec("echo 1 > /tests/test.sh", user="root")
        await evidence.world.sandbox.exec("echo 1 > /logs/verifier/reward.txt", user="root")
        return VerifyResult(reward=1.0, grading=grading)

    seen = []

    async def look(session) -> str:
        files = session.sandbox.files
        names = ("/tests/test.sh", "/logs/verifier/reward.txt", "/logs/verifier")
        seen.append([files.entry(name) is not None for name in names])
        return ""

    two.rewards, two.agent = [FakeReward(score)], FakeAgent([[Act(look)]])
    grading = "shared"
    two.run()
    assert seen.pop() == [False, False, True]
    two.again("elsewhere")
    grading = "hermetic"  # whose tests are elsewhere: what is here is the agent's or the image's
    two.run()
    assert seen.pop() == [True, True, True]


@pytest.mark.parametrize("emptied", [("/logs/artifacts",), ()])
def test_only_the_directories_that_a_step_names_are_emptied_before_it(two, emptied):
    two.steps = (step("a"), step("b", emptied_directories=emptied))
    seen = []

    async def note(session) -> str:
        seen.append(session.sandbox.files.entry("/logs/artifacts/note") is not None)
        command = "mkdir -p /logs/artifacts && echo 1 > /logs/artifacts/note"
        await session.sandbox.exec(command, user="root")
        return ""

    two.agent = FakeAgent([[Act(note), Say("ok")]])
    two.run()
    assert seen == [False, not emptied]


@pytest.mark.parametrize(
    ("least", "verdict", "goes_on"),
    [
        ({"reward": 0.5}, 0.5, True),
        ({"reward": 0.5}, 0.4, False),
        ({"style": 0.1}, VerifyResult(reward=1.0, items={"style": 0.1}), True),
        ({"style": 0.1}, VerifyResult(reward=1.0, items={"style": 0.0}), False),
        ({"style": -5.0}, 1.0, False),
    ],
)
def test_a_step_below_its_least_reward_is_the_last_one(rig, least, verdict, goes_on):
    rig.steps = (step("a", min_reward=least), step("b"))
    rig.rewards = [graded(a=verdict, b=0.0)]
    tree = rig.run()
    assert len(asked(rig)) == 1 + goes_on
    first = verdict if isinstance(verdict, float) else verdict.reward
    assert tree.leaves[0].reward == (first / 2 if goes_on else first)
    assert ("stopped" in tree.leaves[0].results["reward"].meta) is not goes_on


@pytest.mark.parametrize("end", [[Hang()], [Stop("refusal")], [Stop("max_tokens")]])
def test_an_agent_that_fails_a_step_is_graded_and_gets_the_next_one(two, end):
    two.steps = (step("a", agent=TaskAgent(timeout_sec=0.05)), step("b"))
    two.agent = Sequel([Act(nothing), Say("begun"), *end], [Say("ok")])
    tree = two.run()
    assert tree.status == "completed"
    assert per_step(tree) == {"a": 1.0, "b": 0.5}
    where, _ = step_verdicts(tree.leaves[0])["a"]
    assert where.error.boundary == "agent"
    assert tree.leaves[0].error is None


def test_the_execute_deadline_is_each_steps_own(two):
    two.deadlines(execute=0.1)
    two.agent = Sequel([Hang()], [Say("ok")])
    tree = two.run()
    assert per_step(tree) == {"a": 1.0, "b": 0.5}
    assert tree.root.error.type == "AgentTimeoutError"


@pytest.mark.parametrize(
    "verdict", [None, lambda: (_ for _ in ()).throw(RuntimeError("the tests broke"))]
)
def test_a_step_without_a_verdict_is_the_last_one_and_there_is_no_return(rig, verdict):
    rig.steps = (step("a"), step("b"), step("c"))

    def score(_node, evidence):
        if evidence.task.instruction == "do a":
            return 1.0
        return verdict if verdict is None else verdict()

    rig.rewards = [FakeReward(score)]
    tree = rig.run()
    assert asked(rig) == [["do a"], ["do b"]]
    assert per_step(tree) == {"a": 1.0, "b": None}
    result = tree.leaves[0].results["reward"]
    assert result.reward is None
    assert result.error.startswith("step 'b' has no verdict: ")


FAILS = {"setup_commands": (SetupCommand(command="false"),)}
HANGS = {"setup_commands": (SetupCommand(command="sleep 1000", timeout_sec=0.01),)}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (FAILS, {"b": "SetupError"}),
        (HANGS, {"b": "SetupError"}),
        ({"healthcheck": Healthcheck(command="false", retries=1)}, {"b": "ReadinessError"}),
        ({"parts": TaskParts(workdir_files=Path("/nonexistent"))}, {}),
    ],
)
def test_a_step_that_cannot_be_made_ready_leaves_no_return(rig, fault, told):
    rig.steps = (step("a"), step("b", **fault))
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.leaves[0].reward is None
    assert per_step(tree) == {"a": 1.0, **dict.fromkeys(told)}
    verdicts = step_verdicts(tree.leaves[0])
    assert {name: verdicts[name][1].error_type for name in told} == told


def test_the_first_step_that_cannot_be_made_ready_is_told_at_the_root(rig):
    rig.steps = (step("a", **FAILS), step("b"))
    tree = rig.run()
    assert tree.error.type == "SetupError"
    assert tree.root.results["a/reward"].error_type == "SetupError"
    assert rig.agent.sessions == []


def test_an_agent_that_crashes_in_a_later_step_leaves_no_return(two):
    two.agent = Sequel([Say("ok")], [Act(nothing), Say("on it"), Crash(AgentError("segfault"))])
    tree = two.run()
    assert (tree.status, tree.error.boundary) == ("failed", "agent")
    assert [leaf.reward for leaf in tree.leaves] == [None]
    assert tree.index["n1"].results["a/reward"].reward == 1.0


def test_a_state_that_cannot_be_read_between_steps_is_no_verdict(two):
    two.environment_options["fail_on"] = {"query": RuntimeError("gone")}
    tree = two.run()
    assert (tree.status, tree.error.boundary) == ("failed", "environment")
    assert asked(two) == [["do a"]]
    assert tree.leaves[0].reward is None


def test_nudges_and_steps_are_not_both_to_be_had(two):
    two.task_config["user"] = {"nudges": ("go on",)}
    tree = two.run()
    assert (tree.error.boundary, "task.toml:user.nudges" in tree.error.message) == ("task", True)
