"""Every world's model endpoint is a line of its node, recorded and replayed."""

import asyncio

import pytest
from benchflow_contracts import (
    AgentError,
    Role,
    SnapshotError,
    StoreError,
)
from benchflow_kernel import AskUserBranch, BranchBudget, GroupBranch, Scene, Turn
from benchflow_testing.fakes import (
    Act,
    FakeAgent,
    FakeModelGateway,
    Pose,
    Say,
    ask_with_options,
)

DAY = ask_with_options("which day?", "monday", "friday")


def line_of(rig, session):
    door = session.sandbox.spec.door("model")
    return next(line for line in rig.gateway.routes if line.endpoint == door.endpoint)


def think(rig, words) -> Act:
    """Call the model once and tell the id of what came back."""

    async def run(session):
        call = await line_of(rig, session).call({"say": words})
        return f"{call.status} {'replayed' if call.replayed else 'new'}"

    return Act(run, title=words)


@pytest.fixture
def wired(rig, with_model):
    with_model(rig)
    role = Role(agent="fake")
    rig.config["scenes"] = (Scene(roles=(role,), turns=(Turn(), Turn(prompt="now"))),)
    rig.agent = FakeAgent(
        [
            [Say("a"), think(rig, "one"), Say("b"), think(rig, "two")],
            [Say("c"), think(rig, "three"), Pose(DAY, lambda _: [think(rig, "four"), Say("d")])],
        ]
    )
    return rig


@pytest.mark.parametrize("policy", [None, AskUserBranch()])
def test_calls_of_an_earlier_attempt_belong_to_no_step_and_are_not_replayed(wired, policy):
    wired.config["branch"] = policy
    opened = wired.gateway.open
    earlier = []

    async def continued(rollout_id, node, **options):
        route = await opened(rollout_id, node, **options)
        if node == "n0":
            earlier.append((await route.call({"say": "before"})).id)
        return route

    wired.gateway.open = continued
    tree = wired.run()
    assert tree.status == "completed"
    for leaf in tree.leaves:
        calls = [call for step in leaf.steps for call in step.model_calls]
        assert len(calls) == 4
        assert not set(calls) & set(earlier)


def test_steps_know_their_calls_and_what_they_cost(wired):
    wired.config["branch"] = None
    tree = wired.run()
    steps = tree.leaves[0].steps
    assert [len(step.model_calls) for step in steps] == [1, 1, 1, 1, 0]
    assert len({call for step in steps for call in step.model_calls}) == 4
    assert [step.usage.output_tokens for step in steps[:4]] == [1] * 4
    assert all(line.closed for line in wired.gateway.routes)


def test_each_world_has_a_line_named_by_its_node_and_the_same_port(wired):
    wired.live()
    wired.config["branch"] = AskUserBranch()
    tree = wired.run()
    fork = next(node for node in tree.nodes if node.branch)
    root, *children = wired.gateway.routes
    assert root.endpoint.url.endswith("/rollout/r1/node/n0")
    assert {line.endpoint.url.rsplit("/", 1)[1] for line in children} == {
        child.id for child in fork.children
    }


def test_a_replayed_child_is_answered_from_the_record_up_to_the_fork(wired):
    wired.config["branch"] = AskUserBranch()
    tree = wired.run()
    fork = next(node for node in tree.nodes if node.branch)
    assert fork.branch.fidelity == "replay"
    for line in wired.gateway.routes[1:]:
        assert [(call.request["say"], call.replayed) for call in line.calls()] == [
            ("three", True),
            ("four", False),
        ]
    for leaf in tree.leaves:
        told = [call for step in leaf.steps for call in step.model_calls]
        assert len(told) == len(set(told)) == 4


def test_a_turn_that_is_replayed_because_no_session_can_be_carried_is_too(wired):
    wired.agent.faults.fail_on["snapshot"] = SnapshotError("no session files")
    wired.config["branch"] = GroupBranch(n=2, at=1)
    tree = wired.run()
    assert tree.status == "completed"
    for line in wired.gateway.routes[1:]:
        assert [call.replayed for call in line.calls()] == [True, True, False, False]


def test_a_live_child_replays_nothing(wired):
    wired.live()
    wired.config["branch"] = AskUserBranch()
    wired.run()
    for line in wired.gateway.routes[1:]:
        assert [(call.request["say"], call.replayed) for call in line.calls()] == [("four", False)]


def test_tokens_are_counted_over_all_lines_and_stop_the_next_fork(wired):
    wired.config["branch"] = GroupBranch(
        n=2, at=1, budget=BranchBudget(tokens=4), then=AskUserBranch()
    )
    tree = wired.run()
    (record,) = [node.branch for node in tree.nodes if node.branch is not None]
    assert record.children == 0
    assert record.reason == "not forked: 4 of 4 tokens are spent"


def test_a_checkpoint_waits_for_the_call_in_flight(wired):
    wired.live()
    wired.config["branch"] = AskUserBranch()
    order = []

    async def background(session):
        line = line_of(wired, session)
        line.begin()

        def end():
            order.append("call ended")
            line.end()

        asyncio.get_running_loop().call_later(0.05, end)
        return "titling"

    record = wired.provider.record
    wired.provider.record = lambda operation, subject: (
        order.append(operation) if operation == "snapshot" else None,
        record(operation, subject),
    )
    wired.agent = FakeAgent([[Say("a")], [Act(background), Pose(DAY, lambda _: [Say("d")])]])
    wired.run()
    assert order.index("call ended") < len(order) - 1 - order[::-1].index("snapshot")


def test_a_gateway_that_cannot_open_a_line_is_a_failure_of_the_sandbox(wired):
    wired.gateway = FakeModelGateway(fail_on={"open": RuntimeError("no port")})
    tree = wired.run()
    assert tree.error.boundary == "sandbox"


def test_without_a_model_no_line_is_opened(rig):
    rig.gateway = FakeModelGateway()
    rig.run()
    assert rig.gateway.routes == []


# --- a line that ends its agent's work ---------------------------------------------------------


def fickle(rig, *words) -> Act:
    """Call the model with other words each time that it is run."""
    given = iter(words)

    async def run(session):
        return str((await line_of(rig, session).call({"say": next(given)})).status)

    return Act(run, title="fickle")


@pytest.mark.parametrize("ends_itself", [True, False])
def test_a_child_that_makes_another_call_than_the_record_is_lost(wired, ends_itself):
    never = asyncio.Event()
    # The last child alone says something else than its parent did.
    act = fickle(wired, "same", "same", "else")
    turn = [act, Pose(DAY, lambda _: [Say("d")])]
    if not ends_itself:
        stray = Act(lambda session: _after(line_of(wired, session), never), title="wait")
        turn.insert(1, stray)
    wired.agent = FakeAgent([[Say("a")], turn])
    wired.config["branch"] = AskUserBranch(budget=BranchBudget(concurrency=1))
    tree = wired.run()
    (fork,) = [node for node in tree.nodes if node.branch]
    kept, lost = fork.children
    assert [leaf.reward for leaf in kept.leaves] == [1.0]
    assert (lost.error.type, lost.error.boundary) == ("ReplayDivergedError", "snapshot")
    assert lost.reward is None
    assert not lost.results
    assert fork.value.n == 1


async def _after(line, never):
    """Wait for good once the line has refused a call."""
    if line.error is not None:
        await never.wait()
    return "waited"


def test_a_child_that_ends_before_it_has_repeated_all_calls_is_lost(wired):
    calls = iter([2, 2, 1])

    async def some(session):
        for number in range(next(calls)):
            await line_of(wired, session).call({"say": number})
        return "called"

    wired.agent = FakeAgent([[Act(some), Say("b")], [Say("c")]])
    wired.agent.faults.fail_on["snapshot"] = SnapshotError("no session files")
    wired.config["branch"] = GroupBranch(n=2, at=1, budget=BranchBudget(concurrency=1))
    tree = wired.run()
    (fork,) = [node for node in tree.nodes if node.branch]
    assert sorted(str(child.error and child.error.type) for child in fork.children) == [
        "None",
        "ReplayDivergedError",
    ]
    assert fork.value.n == 1


def test_what_the_agent_brought_on_itself_ends_its_turn_and_is_graded(wired):
    never = asyncio.Event()

    async def exceed(session):
        line_of(wired, session).fail(AgentError("too many model records"))
        await never.wait()

    wired.config["branch"] = None
    wired.agent = FakeAgent([[Say("a"), Act(exceed), Say("never")], [Say("neither")]])
    tree = wired.run()
    (leaf,) = tree.leaves
    assert (tree.status, leaf.reward) == ("completed", 1.0)
    assert leaf.error.message == "too many model records"
    assert not {"never", "neither"} & {step.message for step in leaf.steps}


@pytest.mark.parametrize("limits", [{"max_calls": 3}, {"max_tokens": 6}])
def test_a_limit_of_the_task_on_model_calls_ends_the_work_which_is_graded(wired, limits):
    """The task allows three calls of two tokens, and the agent makes four."""
    wired.task_config["agent"] = limits
    wired.config["branch"] = None
    (leaf,) = wired.run().leaves
    assert (leaf.reward, leaf.error.message) == (1.0, "the budget of the route is used up")
    assert _answered(wired) == ["one", "two", "three"]


@pytest.mark.parametrize("fidelity", ["live", "state", "replay"])
def test_a_limit_on_model_calls_holds_for_each_path_and_not_for_each_child(wired, fidelity):
    wired.task_config["agent"] = {"max_calls": 3}
    wired.config["branch"] = GroupBranch(n=2, at=1)
    if fidelity == "live":
        wired.live()
    if fidelity == "replay":
        wired.agent.faults.fail_on["snapshot"] = SnapshotError("no session files")
    tree = wired.run()
    (fork,) = [node.branch for node in tree.nodes if node.branch]
    assert fork.fidelity == fidelity
    assert _answered(wired) == ["one", "two", "three", "three"]
    assert [leaf.reward for leaf in tree.leaves] == [1.0, 1.0]
    assert {leaf.error.message for leaf in tree.leaves} == {"the budget of the route is used up"}


def _answered(rig):
    """Return the calls that a model answered, and not a record."""
    calls = [call for route in rig.gateway.routes for call in route.calls()]
    return [call.request["say"] for call in calls if call.status == 200 and not call.replayed]


def test_a_record_that_cannot_be_written_fails_the_rollout_without_a_score(wired):
    async def lose(session):
        line_of(wired, session).fail(StoreError("no space left"))
        return "lost"

    wired.config["branch"] = None
    wired.agent = FakeAgent([[Say("a"), Act(lose)], [Say("b")]])
    tree = wired.run()
    assert (tree.status, tree.error.type) == ("failed", "StoreError")
    assert all(not leaf.results for leaf in tree.leaves)
