"""Rollouts with a world outside the sandbox: prompt, events, rewards, forks and refusals."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    Environment,
    EnvironmentCalled,
    Role,
    RolloutNode,
    SandboxUnsupportedError,
    VerifyResult,
)
from benchflow_kernel import (
    BestOfBranch,
    GroupBranch,
    Keep,
    RolloutConfig,
    Scene,
    Turn,
    continue_from,
    saved_checkpoints,
)
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    Act,
    FakeAgent,
    FakeOutsideWorld,
    FakeReward,
    FakeSandboxProvider,
    Say,
)


async def count(session: Any) -> str:
    return await FakeOutsideWorld.act(session.sandbox)


def counted(node: RolloutNode, world: Environment | None) -> float:
    """Return what the world paid, as the reward `environment` does."""
    assert isinstance(world, FakeOutsideWorld)
    return sum(event.value for event in world.reward_events())


@pytest.fixture
def counting(rig: Any) -> Any:
    """An agent of two turns that counts once in each."""
    rig.worlds = []
    rig.world_options = {}

    def factory() -> Callable[[], FakeOutsideWorld]:
        def make() -> FakeOutsideWorld:
            rig.worlds.append(FakeOutsideWorld(**rig.world_options))
            return rig.worlds[-1]

        return make

    rig._environment_factory = factory
    rig.agent = FakeAgent([[Act(count), Say("one")], [Act(count), Say("two")]])
    turns = (Turn(role="agent"), Turn(role="agent", prompt="Again."))
    rig.config["scenes"] = (Scene(roles=(Role(agent="fake"),), turns=turns),)
    rig.rewards = [WorldReward()]
    rig.provider.add_capabilities(doors="tunnel")
    return rig


class WorldReward(FakeReward):
    """Scores by the events of the world."""

    def __init__(self) -> None:
        super().__init__(0)

    async def score(self, node: RolloutNode, evidence: Any) -> VerifyResult:
        world = evidence.world.environment
        await world.finish(node.steps)
        events = tuple(world.reward_events())
        return VerifyResult(reward=sum(event.value for event in events), events=events)


def calls_of(rig: Any) -> list[EnvironmentCalled]:
    return [event for event in rig.events if isinstance(event, EnvironmentCalled)]


def test_the_worlds_text_is_the_first_prompt_and_its_calls_are_recorded(counting: Any) -> None:
    tree = counting.run()
    (leaf,) = tree.leaves
    assert [step.prompt for step in leaf.steps if step.prompt] == ["Count to 3.", "Again."]
    called = calls_of(counting)
    assert [(call.operation, call.result) for call in called] == [
        ("open", "Count to 3."),
        ("call", "1"),
        ("call", "2"),
    ]
    assert [reward.value for call in called for reward in call.rewards] == [1, 1]
    assert leaf.reward == 2
    ids = [event.step_id for event in leaf.results["reward"].events]
    acted = [step.id for step in leaf.steps if step.tool_calls]
    assert ids == acted


def test_the_tools_reach_the_agent_through_a_door_of_a_sandbox_without_a_network(
    counting: Any,
) -> None:
    counting.run()
    (created,) = {sandbox.spec.network for sandbox in counting.provider.created}
    assert created == "model-only"
    (session,) = counting.agent.sessions
    assert [server.name for server in session.role.mcp_servers] == ["fake-outside"]


def test_no_turn_follows_the_end_of_an_episode(counting: Any) -> None:
    counting.world_options["goal"] = 1
    tree = counting.run()
    (leaf,) = tree.leaves
    assert leaf.reward == 1
    assert [step.prompt for step in leaf.steps if step.prompt] == ["Count to 1."]


@pytest.mark.parametrize("kind", ["replay", "state", "live"])
@pytest.mark.parametrize("engine", ["live", "files"])
def test_children_of_a_fork_reach_the_state_of_the_world(
    counting: Any, kind: str, engine: str
) -> None:
    if engine == "live":
        counting.provider = FakeSandboxProvider()
        counting.provider.add_capabilities(doors="tunnel")
    counting.world_options |= {"snapshots": kind, "goal": 9}
    counting.config["branch"] = GroupBranch(n=2, at=1)
    tree = counting.run()
    (fork,) = [node for node in tree.nodes if node.branch]
    best = {"live": "live", "files": "state"}[engine]
    order = ["replay", "state", "live"]
    assert fork.branch.fidelity == min(best, kind, key=order.index)
    assert [leaf.reward for leaf in tree.leaves] == [2, 2]
    for leaf in tree.leaves:
        events = leaf.results["reward"].events
        assert [event.step_id for event in events] == [s.id for s in leaf.steps if s.tool_calls]
    # A repetition is not an exchange of the agent.
    assert [call.result for call in calls_of(counting)] == ["Count to 9.", "1", "2", "2"]
    assert all("teardown" in world.log for world in counting.worlds if "provision" in world.log)


def test_a_world_that_does_not_repeat_itself_loses_its_children(counting: Any) -> None:
    counting.world_options["drifts"] = True
    counting.config["branch"] = GroupBranch(n=2, at=1)
    tree = counting.run()
    assert tree.status == "failed"
    assert {leaf.error.type for leaf in tree.leaves} == {"SnapshotError"}
    assert all(leaf.reward is None for leaf in tree.leaves)


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("none", {"branch": GroupBranch(n=2, at=1)}, "snapshots 'none'"),
        ("none", {"keep": Keep(which="all")}, "snapshots 'none'"),
        ("replay", {"branch": GroupBranch(n=2, at=1, require="state")}, "snapshots 'replay'"),
        (
            "replay",
            {"branch": GroupBranch(n=2, at=1, then=BestOfBranch(n=2, at=1, require="state"))},
            "snapshots 'replay'",
        ),
    ],
)
def test_a_fork_that_the_world_cannot_have_is_refused_before_a_sandbox_exists(
    counting: Any, kind: str, change: dict[str, Any], reason: str
) -> None:
    counting.world_options["snapshots"] = kind
    counting.config |= change
    tree = counting.run()
    assert tree.status == "failed"
    assert reason in tree.error.message
    assert counting.provider.created == []
    assert not any("open_doors" in world.log for world in counting.worlds)


def test_a_world_without_snapshots_runs_without_forks(counting: Any) -> None:
    counting.world_options["snapshots"] = "none"
    assert counting.run().leaves[0].reward == 2


def test_a_best_child_is_continued_in_a_world_of_its_state(counting: Any) -> None:
    counting.world_options["goal"] = 9
    counting.config["branch"] = BestOfBranch(n=2, at=0)
    tree = counting.run()
    assert sorted(leaf.reward for leaf in tree.leaves) == [1, 2]


def test_a_saved_checkpoint_has_the_state_of_the_world(counting: Any, tmp_path: Path) -> None:
    counting.world_options["goal"] = 9
    counting.config["keep"] = Keep(which="all")
    counting.run()
    path, manifest = list(saved_checkpoints(counting.directory))[1]
    assert manifest.outside is not None
    assert (manifest.turn, len(manifest.outside.data["steps"])) == (1, 1)
    assert manifest.layers["outside"] == manifest.outside.digest

    async def resume() -> Any:
        config = RolloutConfig(**{**counting.config, "keep": Keep()})
        return await continue_from(
            path, counting.task(), config, counting.planes(), directory=tmp_path / "again"
        )

    tree = asyncio.run(resume())
    assert [leaf.reward for leaf in tree.leaves] == [2]


@pytest.mark.parametrize("method", ["open_doors", "provision"])
def test_a_world_that_cannot_begin_is_a_failure_of_the_environment(
    counting: Any, method: str
) -> None:
    counting.world_options["fail_on"] = {method: ConnectionError("no server")}
    tree = counting.run()
    assert (tree.status, tree.error.boundary) == ("failed", "environment")
    assert "no server" in tree.error.message
    assert "teardown" in counting.worlds[-1].log


def test_a_provider_without_doors_is_refused(counting: Any) -> None:
    counting.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
    counting.config["branch"] = GroupBranch(n=2, at=1)
    tree = counting.run()
    assert tree.error.type == SandboxUnsupportedError.__name__
    assert "fake-outside" in tree.error.message
