"""Forks at a model call: each child gets its own answer to the same call."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from benchflow_contracts import Role, SnapshotError
from benchflow_kernel import (
    AskUserBranch,
    BranchBudget,
    GroupBranch,
    Keep,
    Scene,
    Turn,
    ValueBranch,
)
from benchflow_kernel.branch import forks_at_call
from benchflow_testing.fakes import Act, FakeAgent, Think
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from test_saved_checkpoints import go_on


def route_of(rig: Any, session: Any) -> Any:
    door = session.sandbox.spec.door("model")
    return next(route for route in rig.gateway.routes if route.endpoint == door.endpoint)


def think(rig: Any, words: str, *, retries: bool = True) -> Think:
    """Call the model until it answers, and say the answer."""

    async def run(session: Any) -> str:
        while True:
            call = await route_of(rig, session).call({"say": words})
            if call.status == 200:
                return str(call.response["text"])
            if call.status != 503 or not retries:
                return f"failed with {call.status}"
            await asyncio.sleep(0)

    return Think(run)


def write(path: str) -> Act:
    async def run(session: Any) -> str:
        await session.sandbox.exec(["touch", path])
        return f"wrote {path}"

    return Act(run, title=f"write {path}")


class Sampler:
    """A model that never answers twice alike."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def __call__(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.requests.append(request["say"])
        return {"text": f"{request['say']} answer {len(self.requests)}"}


@pytest.fixture
def acting(rig: Any, with_model: Any) -> Any:
    """One turn with three model calls, and a tool call after each of the first two."""
    gateway = with_model(rig)
    rig.sampler = Sampler()
    gateway.model = lambda _upstream: rig.sampler
    rig.config["scenes"] = (Scene(roles=(Role(agent="fake"),)),)
    rig.agent = FakeAgent(
        [[think(rig, "one"), write("a"), think(rig, "two"), write("b"), think(rig, "three")]]
    )
    return rig


def answers(leaf: Any) -> list[str]:
    return [step.message for step in leaf.steps]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_group_at_a_call_shares_what_came_before_and_samples_the_call_anew(
    acting: Any, *, live: bool, call: int
) -> None:
    if live:
        acting.live()
    acting.config["branch"] = GroupBranch(n=3, at_call=call)
    tree = acting.run()
    assert tree.status == "completed"
    (fork,) = [node for node in tree.nodes if node.branch]
    assert (fork.branch.call, fork.branch.children) == (call, 3)
    assert fork.branch.fidelity == ("live" if live else "replay")
    assert len(fork.children) == len(tree.leaves) == 3
    # The prefix was sampled once, and each child asked again from the call on.
    words = ["one", "two", "three"]
    assert acting.sampler.requests.count(words[call - 1]) == 3
    assert len(acting.sampler.requests) == (call - 1) + 3 * (4 - call)
    said = [answers(leaf) for leaf in tree.leaves]
    assert len({tuple(texts[: call - 1]) for texts in said}) == 1
    assert len({texts[call - 1] for texts in said}) == 3
    for leaf in tree.leaves:
        calls = [each for step in leaf.steps for each in step.model_calls]
        assert len(calls) == len(set(calls)) == 3
        assert leaf.steps[0].prompt == "do it"
        assert [step.prompt for step in leaf.steps[1:]] == [None, None]
    assert tree.root.value is not None
    assert tree.root.value.n == 3


@pytest.mark.parametrize("live", [True, False])
def test_the_calls_before_the_fork_are_replayed_or_not_made(acting: Any, *, live: bool) -> None:
    if live:
        acting.live()
    acting.config["branch"] = GroupBranch(n=2, at_call=3)
    acting.run()
    parent, *children = acting.gateway.routes
    assert [call.request["say"] for call in parent.calls()] == ["one", "two"]
    assert parent.deferred >= 1
    replayed = [] if live else [("one", True), ("two", True)]
    for route in children:
        assert [(c.request["say"], c.replayed) for c in route.calls()] == [
            *replayed,
            ("three", False),
        ]


def test_a_value_policy_forks_at_each_nth_call_and_the_path_continues(acting: Any) -> None:
    acting.live()
    acting.config["branch"] = ValueBranch(n=1, every_call=2)
    tree = acting.run()
    (fork,) = [node for node in tree.nodes if node.branch]
    assert (fork.branch.policy, fork.branch.call) == ("value", 2)
    # The path of the parent and the one child.
    assert len(tree.leaves) == 2
    assert tree.root.value.n == 2
    assert acting.sampler.requests.count("two") == 2


def test_a_refused_fork_does_not_hide_the_fork_of_its_parent(acting: Any) -> None:
    acting.live()
    acting.config["branch"] = ValueBranch(n=1, every_call=1)
    tree = acting.run()
    forks = [node.branch for node in tree.nodes if node.branch and node.branch.children]
    assert [fork.call for fork in forks] == [1, 2, 3]
    refused = [
        node.branch.reason for node in tree.nodes if node.branch and not node.branch.children
    ]
    assert set(refused) == {"not forked: max_depth 1 is reached"}
    assert len(tree.leaves) == 4
    assert tree.root.value.n == 2


@pytest.mark.parametrize(
    ("call", "calls", "leaves"),
    [
        (4, [None, 4, 4], 4),
        # The children start at call 3, so their state is forked already.
        (3, [None], 2),
    ],
)
def test_calls_are_counted_along_the_path_over_turns_and_children(
    acting: Any, call: int, calls: list[int | None], leaves: int
) -> None:
    acting.live()
    acting.config["scenes"] = (
        Scene(roles=(Role(agent="fake"),), turns=(Turn(), Turn(prompt="more"))),
    )
    acting.agent = FakeAgent(
        [
            [think(acting, "one"), think(acting, "two")],
            [think(acting, "three"), write("a"), think(acting, "four")],
        ]
    )
    acting.config["branch"] = GroupBranch(n=2, at=1, then=GroupBranch(n=2, at_call=call))
    tree = acting.run()
    assert [node.branch.call for node in tree.nodes if node.branch] == calls
    assert len(tree.leaves) == leaves
    assert acting.sampler.requests.count("four") == leaves


def test_a_call_that_never_comes_is_not_a_fork(acting: Any) -> None:
    acting.live()
    acting.config["branch"] = GroupBranch(n=2, at_call=4)
    tree = acting.run()
    assert tree.status == "completed"
    assert [node.branch for node in tree.nodes if node.branch] == []
    assert len(tree.leaves) == 1


def test_an_agent_that_gives_up_at_the_deferred_call_is_never_scored(acting: Any) -> None:
    acting.live()
    acting.agent = FakeAgent([[think(acting, "one"), think(acting, "two", retries=False)]])
    acting.agent.faults.hang_on.add("end_step")
    acting.config["branch"] = GroupBranch(n=2, at_call=2)
    tree = acting.run()
    assert (tree.status, tree.error.boundary) == ("failed", "snapshot")
    assert "ended its turn at model call 2, which was deferred" in tree.error.message
    assert all(leaf.reward is None for leaf in tree.leaves)


def test_a_live_child_that_does_not_repeat_the_call_is_lost(acting: Any) -> None:
    acting.live()

    async def only_in_the_parent(session: Any) -> str:
        if len(acting.agent.sessions) == 2:
            return "gave up"
        return await think(acting, "two").run(session)

    acting.agent = FakeAgent([[think(acting, "one"), Think(only_in_the_parent)]])
    acting.config["branch"] = GroupBranch(n=2, at_call=2, budget=BranchBudget(concurrency=1))
    tree = acting.run()
    lost, kept = tree.leaves
    assert "ended its turn at model call 2" in lost.error.message
    assert (lost.reward, kept.reward) == (None, 1.0)
    assert tree.root.value.n == 1


def test_a_snapshot_that_fails_at_the_call_falls_back_to_a_replay(acting: Any) -> None:
    acting.live()
    acting.agent.faults.fail_on["capture"] = SnapshotError("a library with open hands")
    acting.config["branch"] = GroupBranch(n=2, at_call=2)
    tree = acting.run()
    (fork,) = [node for node in tree.nodes if node.branch]
    assert fork.branch.fidelity == "replay"
    assert "open hands" in fork.branch.reason
    assert len(tree.leaves) == 2


def test_a_live_fork_at_a_call_satisfies_a_required_state(acting: Any) -> None:
    acting.live()
    acting.config["branch"] = GroupBranch(n=2, at_call=2, require="state")
    tree = acting.run()
    (fork,) = [node for node in tree.nodes if node.branch]
    assert (tree.status, fork.branch.fidelity, len(tree.leaves)) == ("completed", "live", 2)


def test_a_required_state_at_a_call_is_refused_before_anything_starts(acting: Any) -> None:
    acting.config["branch"] = GroupBranch(n=2, at_call=2, require="state")
    tree = acting.run()
    assert tree.error.type == "FidelityError"
    assert "'state' is not available at a model call" in tree.error.message
    assert (acting.provider.log, acting.sampler.requests) == ([], [])


@pytest.mark.parametrize("require", ["live", "state"])
def test_a_required_fidelity_that_fails_at_the_call_is_never_a_replay(
    acting: Any, require: Any
) -> None:
    acting.live()
    acting.agent.faults.fail_on["capture"] = SnapshotError("a library with open hands")
    acting.config["branch"] = GroupBranch(n=2, at_call=2, require=require)
    tree = acting.run()
    assert (tree.status, tree.error.type) == ("failed", "FidelityError")
    assert "open hands" in tree.error.message
    # No child sampled the call, nothing is scored, and no snapshot is left.
    assert acting.sampler.requests == ["one"]
    assert all(leaf.reward is None for leaf in tree.leaves)
    assert len(acting.provider.images) == 0


@pytest.mark.parametrize("require", [None, "live"])
def test_a_session_that_cannot_end_its_step_is_not_forked_or_fails_as_required(
    acting: Any, require: Any
) -> None:
    acting.live()
    acting.agent.faults.fail_on["end_step"] = SnapshotError("a tool call is running")
    acting.config["branch"] = GroupBranch(n=2, at_call=2, require=require)
    tree = acting.run()
    if require is None:
        assert tree.status == "completed"
        assert "a tool call is running" in next(n.branch.reason for n in tree.nodes if n.branch)
        assert len(tree.leaves) == 1
    else:
        assert (tree.status, tree.error.boundary) == ("failed", "snapshot")
        assert all(leaf.reward is None for leaf in tree.leaves)


def test_a_model_error_at_the_call_of_a_child_is_the_childs_alone(acting: Any) -> None:
    acting.live()

    def flaky(request: Mapping[str, Any]) -> Mapping[str, Any]:
        acting.sampler.requests.append(request["say"])
        if request["say"] == "two" and acting.sampler.requests.count("two") == 1:
            route = acting.gateway.routes[-1]
            route.fail(SnapshotError("the host lost the endpoint"))
        return {"text": f"{request['say']} {len(acting.sampler.requests)}"}

    acting.gateway.model = lambda _upstream: flaky
    acting.config["branch"] = GroupBranch(n=3, at_call=2, budget=BranchBudget(concurrency=1))
    tree = acting.run()
    scored = [leaf for leaf in tree.leaves if leaf.reward is not None]
    assert len(scored) == 2
    assert tree.root.value.n == 2


def test_a_replayed_child_that_never_reaches_the_call_is_lost(acting: Any) -> None:
    sessions: list[Any] = []

    async def once(session: Any) -> str:
        sessions.append(session)
        if len(sessions) > 1:
            return "nothing"
        return await think(acting, "two").run(session)

    acting.agent = FakeAgent([[think(acting, "one"), Think(once)]])
    acting.config["branch"] = GroupBranch(n=2, at_call=2)
    tree = acting.run()
    assert tree.status == "failed"
    assert all(leaf.reward is None for leaf in tree.leaves)
    assert "ended its turn where its parent made model call 2" in tree.error.message


def test_a_replayed_child_with_another_request_at_the_fork_is_lost(acting: Any) -> None:
    async def drifts(session: Any) -> str:
        word = "two" if len(acting.agent.sessions) != 2 else "2"
        return await think(acting, word).run(session)

    acting.agent = FakeAgent([[think(acting, "one"), write("a"), Think(drifts)]])
    acting.config["branch"] = GroupBranch(n=2, at_call=2, budget=BranchBudget(concurrency=1))
    tree = acting.run()
    lost, kept = tree.leaves
    assert "its model call 2 is not its parent's call 2" in lost.error.message
    assert (lost.reward, kept.reward) == (None, 1.0)
    assert acting.sampler.requests == ["one", "two"]


@pytest.mark.parametrize("policy", [None, GroupBranch(n=3, at_call=2)])
@pytest.mark.parametrize("live", [True, False])
def test_a_saved_call_is_resumed_or_forked_again(acting: Any, policy: Any, *, live: bool) -> None:
    if live:
        acting.live()
    acting.config.update(keep=Keep(which="forks"), branch=GroupBranch(n=2, at_call=2))
    acting.run()
    (path,) = (acting.directory / "checkpoints").iterdir()
    acting.sampler.requests.clear()
    tree = go_on(acting, path, config={"branch": policy})
    assert tree.status == "completed", tree.error
    children = 1 if policy is None else 3
    assert acting.sampler.requests.count("two") == len(tree.leaves) == children
    assert "one" not in acting.sampler.requests
    assert all(len(leaf.steps) == 3 for leaf in tree.leaves)
    assert [node.branch.call for node in tree.nodes if node.branch] == [2] * (policy is not None)


def test_a_fork_at_calls_needs_a_gateway(rig: Any) -> None:
    rig.config["branch"] = GroupBranch(n=2, at_call=1)
    tree = rig.run()
    assert tree.status == "failed"
    assert "no gateway" in tree.error.message


@pytest.mark.parametrize(
    "build",
    [
        lambda: GroupBranch(at=1, at_call=1),
        lambda: GroupBranch(at_call=0),
        lambda: ValueBranch(every_call=1, call_share=0.5),
        lambda: ValueBranch(every=2, every_call=1),
        lambda: ValueBranch(call_share=0),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(build: Any) -> None:
    with pytest.raises(ValidationError):
        build()


CALLS = st.integers(1, 10_000)


@given(CALLS, st.integers(1, 50))
def test_each_nth_call_forks(call: int, every: int) -> None:
    assert forks_at_call(ValueBranch(every_call=every), call, "r") == (call % every == 0)
    assert forks_at_call(GroupBranch(at_call=every), call, "r") == (call == every)
    assert not forks_at_call(AskUserBranch(), call, "r")
    assert not forks_at_call(ValueBranch(), call, "r")


@given(st.integers(), st.text(max_size=20), CALLS, st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_random_choice_repeats_itself_and_grows_with_its_share(
    seed: int, rollout: str, call: int, first: float, second: float
) -> None:
    low, high = sorted((first, second))
    chosen = [
        forks_at_call(ValueBranch(call_share=share, seed=seed), call, rollout)
        for share in (low, low, high, 1.0)
    ]
    assert chosen[0] == chosen[1]
    assert chosen[0] <= chosen[2] <= chosen[3] is True


@pytest.mark.parametrize("seed", range(4))
def test_a_random_choice_has_its_share_and_differs_by_seed_and_rollout(seed: int) -> None:
    def chosen(seed: int, rollout: str) -> Sequence[int]:
        policy = ValueBranch(call_share=0.3, seed=seed)
        return [call for call in range(1, 2001) if forks_at_call(policy, call, rollout)]

    assert 500 < len(chosen(seed, "r")) < 700
    assert chosen(seed, "r") != chosen(seed + 1, "r")
    assert chosen(seed, "r") != chosen(seed, "other")
