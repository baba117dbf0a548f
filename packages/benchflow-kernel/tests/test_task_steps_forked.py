"""Tasks of several steps, forked: no step is graded or made ready twice."""

import asyncio
from collections import Counter

import pytest
from benchflow_contracts import (
    ExecResult,
    Role,
    SetupCommand,
    SnapshotError,
    TaskStep,
)
from benchflow_kernel import (
    AskUserBranch,
    BestOfBranch,
    GroupBranch,
    Keep,
    RolloutConfig,
    Scene,
    Turn,
    ValueBranch,
    continue_from,
    saved_checkpoints,
    step_verdicts,
)
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    Act,
    FakeAgent,
    FakeReward,
    FakeSandboxProvider,
    Pose,
    Say,
    ask_with_options,
)

READY = SetupCommand(command="echo ready >> /workspace/log", user="")
DAY = ask_with_options("which day?", "monday", "friday")


class World:
    """Two steps whose prompts and preparations are logged in a file of the box."""

    def __init__(self, rig) -> None:
        self.rig = rig
        self.graded: list[str] = []
        self.logs: list[str] = []
        self.draws = iter(range(1000))
        rig.steps = tuple(
            TaskStep(name=name, instruction=f"do {name}", setup_commands=(READY,)) for name in "ab"
        )
        rig.agent = FakeAgent([[Say("ok"), Act(self.write)], [Say("more"), Act(self.write)]])
        rig.rewards = [FakeReward(self.score)]

    async def write(self, session) -> str:
        words = session.prompts[-1].replace(" ", "-")
        await session.sandbox.exec(f"echo {words} >> /workspace/log")
        return str(next(self.draws))

    def score(self, node, evidence) -> float:
        self.graded.append(evidence.task.instruction)
        if not evidence.world.continues:
            log = evidence.world.sandbox.files.read("/workspace/log", user="root").decode()
            self.logs.append(" ".join(log.split()))
        return float(node.steps[-1].observations[0].content)


def prompts(rig, *turns) -> None:
    roles = (Role(agent="fake"),)
    rig.config["scenes"] = (Scene(roles=roles, turns=tuple(Turn(prompt=text) for text in turns)),)


def verdicts(leaf) -> list[float]:
    return [result.reward for _, result in step_verdicts(leaf).values()]


@pytest.fixture
def world(rig):
    return World(rig)


@pytest.mark.parametrize("live", [False, True])
def test_a_fork_at_the_second_step_shares_the_verdict_on_the_first(rig, world, live):
    if live:
        rig.live()
    rig.config["branch"] = GroupBranch(n=3, at=1)
    tree = rig.run()
    assert Counter(world.graded) == {"do a": 1, "do b": 3}
    assert world.logs == ["ready do-a ready do-b"] * 3
    (fork,) = [node for node in tree.nodes if node.branch is not None]
    assert fork.branch.fidelity == ("live" if live else "state")
    assert "a/reward" in fork.results
    assert sorted(verdicts(leaf)[1] for leaf in tree.leaves) == [1.0, 2.0, 3.0]
    assert all(leaf.reward == sum(verdicts(leaf)) / 2 for leaf in tree.leaves)


def test_children_of_the_first_step_go_through_all_steps_each(rig, world):
    rig.config["branch"] = GroupBranch(n=2, at=0)
    tree = rig.run()
    assert Counter(world.graded) == {"do a": 2, "do b": 2}
    assert world.logs == ["ready do-a ready do-b"] * 2
    assert [len(verdicts(leaf)) for leaf in tree.leaves] == [2, 2]


@pytest.mark.parametrize("live", [False, True])
def test_a_question_of_the_second_step_forks_there(rig, world, live):
    if live:
        rig.live()
    asks = [Say("hm"), Act(world.write), Pose(DAY, lambda answer: [Act(chosen(answer))])]
    rig.agent = FakeAgent([asks])

    def chosen(answer):
        async def run(_session) -> str:
            return {"monday": "10", "friday": "20"}[answer.selected["q1"][0]]

        return run

    rig.config["branch"] = AskUserBranch(budget={"max_depth": 2})
    tree = rig.run()
    assert Counter(world.graded) == {"do a": 2, "do b": 4}
    assert world.logs == ["ready do-a ready do-b"] * 4
    assert sorted(leaf.reward for leaf in tree.leaves) == [10.0, 15.0, 15.0, 20.0]


def test_a_replay_through_a_steps_end_makes_the_next_one_ready_but_grades_nothing_again(rig, world):
    prompts(rig, "one", "two")
    rig.agent = FakeAgent(
        [[Say("1"), Act(world.write)], [Say("2"), Act(world.write)]],
        fail_on={"snapshot": SnapshotError("it lives in memory")},
    )
    rig.config["branch"] = GroupBranch(n=2, at=3)
    tree = rig.run()
    (fork,) = [node for node in tree.nodes if node.branch is not None]
    assert fork.branch.fidelity == "replay"
    assert Counter(world.graded) == {"do a": 1, "do b": 2}
    assert world.logs == ["ready one two ready one two"] * 2
    assert len(fork.path) == 4
    assert all(len(verdicts(leaf)) == 2 for leaf in tree.leaves)


def test_a_replay_whose_next_step_cannot_be_made_ready_says_nothing_of_its_siblings(rig, world):
    prompts(rig, "one", "two")
    rig.agent = FakeAgent(
        [[Say("1"), Act(world.write)], [Say("2"), Act(world.write)]],
        fail_on={"snapshot": SnapshotError("it lives in memory")},
    )
    rig.config["branch"] = GroupBranch(n=2, at=3)
    worlds = iter([True, True, False])  # the main line's, and each child's

    async def ready(_call) -> ExecResult:
        code = 0 if next(worlds) else 1
        return ExecResult(exit_code=code, stdout="", stderr="", duration_sec=0)

    rig.steps = (
        rig.steps[0],
        rig.steps[1].model_copy(update={"setup_commands": (SetupCommand(command="get-ready"),)}),
    )
    rig.provider.on("get-ready", ready)
    tree = rig.run()
    (fork,) = [node for node in tree.nodes if node.branch is not None]
    assert fork.results == {}
    lost, scored = sorted(tree.leaves, key=lambda leaf: leaf.reward is not None)
    assert lost.error.type == "SetupError"
    assert len(verdicts(scored)) == 2


def test_the_best_first_step_is_gone_on_from_and_has_its_verdict_once(rig, world):
    rig.config["branch"] = BestOfBranch(n=3, at=0)
    tree = rig.run()
    assert Counter(world.graded) == {"do a": 3, "do b": 1}
    assert world.logs == ["ready do-a ready do-b"]
    (winner,) = [leaf for leaf in tree.leaves if len(leaf.path) == 3]
    assert verdicts(winner) == [2.0, 3.0]
    assert winner.reward == 2.5
    assert sorted(leaf.reward for leaf in tree.leaves) == [0.0, 1.0, 2.5]


def test_the_best_of_the_last_turns_is_the_end(rig, world):
    rig.config["branch"] = BestOfBranch(n=2, at=1)
    tree = rig.run()
    assert Counter(world.graded) == {"do a": 1, "do b": 2}
    assert sorted(leaf.reward for leaf in tree.leaves) == [0.5, 1.0]


def test_the_best_turn_within_a_step_is_graded_where_the_step_ends(rig, world):
    prompts(rig, None, "more")
    rig.config["branch"] = BestOfBranch(n=2, at=0)
    tree = rig.run()
    (winner,) = [leaf for leaf in tree.leaves if len(leaf.path) == 5]
    assert verdicts(winner) == [2.0, 4.0]
    assert Counter(world.graded) == {"do a": 3, "do b": 1}


def test_a_best_step_below_its_least_reward_is_the_end(rig, world):
    rig.steps = (rig.steps[0].model_copy(update={"min_reward": {"reward": 5.0}}), rig.steps[1])
    rig.config["branch"] = BestOfBranch(n=2, at=0)
    tree = rig.run()
    assert Counter(world.graded) == {"do a": 2}
    assert sorted(leaf.reward for leaf in tree.leaves) == [0.0, 1.0]
    assert tree.status == "completed"


def test_values_are_told_at_every_step(rig, world):
    rig.config["branch"] = ValueBranch(n=2, every=1)
    tree = rig.run()
    forks = [node for node in tree.nodes if node.branch is not None and node.branch.children]
    assert [len(node.path) for node in forks][:2] == [1, 2]
    assert all(node.value is not None for node in forks)
    assert all(len(verdicts(leaf)) == 2 for leaf in tree.leaves)
    assert set(world.logs) == {"ready do-a ready do-b"}


def test_a_child_that_does_nothing_writes_no_verdict_to_its_parent(rig, world):
    rig.config["branch"] = GroupBranch(n=2, at=0)

    class Silent:
        def __init__(self, session) -> None:
            self._session = session

        def __getattr__(self, name):
            return getattr(self._session, name)

        def on_step(self, handler) -> None:
            """Keep every step to itself."""

    connect = rig.agent.connect

    async def silent(*given, **options):
        return Silent(await connect(*given, **options))

    rig.agent.connect = silent
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.root.results == {}
    assert [leaf.reward for leaf in tree.leaves] == [None, None]


@pytest.fixture
def kept(rig, world):
    rig.config["keep"] = Keep(which="all")
    rig.run()
    world.graded.clear()
    world.logs.clear()
    rig.agent.sessions.clear()
    return {manifest.turn: path for path, manifest in saved_checkpoints(rig.directory)}


def go_on(rig, path, **options):
    rig.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
    rig.again("continued")
    rig.users.clear()
    rig.environments.clear()

    async def main():
        return await continue_from(
            path,
            rig.task(),
            RolloutConfig(**{**rig.config, "keep": Keep(), **options.pop("config", {})}),
            rig.planes(),
            rollout_id="r2",
            directory=rig.directory,
            subscribers=[rig.events.append],
            **options,
        )

    tree = asyncio.run(main())
    rig.check_clean()
    rig.check_record(tree)
    return tree


def test_a_kept_step_is_gone_on_from_with_the_verdicts_before_it(rig, world, kept):
    assert sorted(kept) == [0, 1]
    tree = go_on(rig, kept[1])
    assert [session.prompts for session in rig.agent.sessions] == [["do b"]]
    assert world.graded == ["do b"]
    assert world.logs == ["ready do-a ready do-b"]
    (leaf,) = tree.leaves
    assert verdicts(leaf) == [0.0, 2.0]
    assert leaf.reward == 1.0


def test_a_kept_step_is_forked_afterwards(rig, world, kept):
    tree = go_on(rig, kept[1], config={"branch": GroupBranch(n=2, at=1)})
    assert Counter(world.graded) == {"do b": 2}
    assert sorted(leaf.reward for leaf in tree.leaves) == [1.0, 1.5]


def test_a_step_is_not_gone_on_from_with_another_prompt(rig, kept):
    tree = go_on(rig, kept[1], prompt="something else")
    assert (tree.error.boundary, tree.error.type) == ("usage", "UsageError")
    assert "its own prompts" in tree.error.message
