"""Checkpoints: live forks, the invariants at every fidelity, and a fault at every step."""

import asyncio

import pytest
from benchflow_contracts import (
    AgentError,
    Answer,
    EnvironmentError_,
    Role,
    SnapshotError,
)
from benchflow_kernel import AskUserBranch, BestOfBranch, GroupBranch, Scene, Turn, ValueBranch
from benchflow_testing.fakes import (
    FAKE_CAPABILITIES,
    Act,
    FakeAgent,
    FakeReward,
    FakeSandboxProvider,
    FakeWorld,
    Pose,
    Say,
    ask_with_options,
)

DAY = ask_with_options("which day?", "monday", "friday")
HOUR = ask_with_options("which hour?", "ten", "noon", ident="ask-2")
FIDELITIES = ("live", "state", "replay")


def chosen(answer: Answer) -> str:
    return answer.selected["q1"][0]


def book(word: str) -> Act:
    """Write a row, a file, and the memory of a service that only a live fork carries."""

    async def run(session):
        await FakeWorld(session.sandbox).insert("events", (word,))
        await session.sandbox.exec(f"echo {word} >> booked.txt")
        return "ok"

    return Act(run, title=f"book {word}")


def rows(node):
    return [row[0] for row in node.env_state.databases["/state"]["events"].rows]


@pytest.fixture
def asking(rig):
    """An agent that acts, asks, and acts on the answer; the sandboxes can be forked live."""
    rig.live()
    rig.agent = FakeAgent(
        [[Say("hm"), book("before"), Pose(DAY, lambda a: [book(chosen(a)), Say("booked")])]]
    )
    rig.environment_options.update(tables={"events": []}, services=("mail",))
    rig.rewards = [FakeReward(lambda node, _: float(rows(node)[-1] == "friday"))]
    rig.config["branch"] = AskUserBranch()
    return rig


def fork_of(tree):
    return next(node for node in tree.nodes if node.branch is not None and node.branch.children)


def test_a_pending_question_is_forked_live_and_the_agent_is_started_once(asking):
    tree = asking.run()
    fork = fork_of(tree)
    assert fork.branch.fidelity == "live"
    assert "fake" in fork.branch.reason
    assert {child.label: child.leaves[0].reward for child in fork.children} == {
        "monday": 0.0,
        "friday": 1.0,
    }
    assert all(chosen(child.step.answer) == child.label for child in fork.children)
    root, *children = asking.agent.sessions
    assert root.prompts == ["do it"]
    assert {child.id for child in children} == {root.id}
    assert {child.process.id for child in children} == {root.process.id}
    for leaf in tree.leaves:
        assert rows(leaf) == ["before", leaf.path[-1].label or leaf.path[-2].label]


def test_a_live_child_goes_on_with_the_memory_of_the_worlds_services(asking):
    seen = []

    async def remember(session):
        asking.environments[0].service("mail").memory["draft"] = "hello"
        return "ok"

    async def recall(session):
        seen.append([dict(e.service("mail").memory) for e in asking.environments[1:] if e._running])
        return "ok"

    asking.agent = FakeAgent([[Act(remember), Pose(DAY, lambda a: [Act(recall)])]])
    asking.run()
    assert len(seen) == 2
    assert all(memory == {"draft": "hello"} for memories in seen for memory in memories)
    assert all(memories for memories in seen)


def test_the_live_layers_are_captured_inside_one_freeze_environment_first(asking):
    order = []
    make = asking._environment

    def watched():
        environment = make()
        query, quiesce = environment.query, environment.quiesce

        async def noted():
            order.append("environment")
            return await query()

        def resting():
            order.append("quiesce")
            return quiesce()

        environment.query, environment.quiesce = noted, resting
        return environment

    class Watched(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            session = await super().connect(sandbox, role, resume=resume, log_dir=log_dir)
            carry = session.capture

            async def noted():
                order.append("session")
                return await carry()

            session.capture = noted
            return session

    record = asking.provider.record
    asking.provider.record = lambda operation, subject: (
        order.append(operation) if operation in {"freeze", "snapshot", "thaw"} else None,
        record(operation, subject),
    )
    asking._environment = watched
    asking.agent = Watched(asking.agent._turns)
    asking.run()
    at = order.index("session")
    assert order[at - 3 : at] == ["quiesce", "freeze", "environment"]
    assert order[at : at + 3] == ["session", "snapshot", "thaw"]
    live = [event for event in asking.events if event.kind == "checkpointed"][-1]
    assert set(live.layers) == {"sandbox", "environment", "session"}


def test_live_forks_nest(asking):
    asking.agent = FakeAgent(
        [[Pose(DAY, lambda a: [book(chosen(a)), Pose(HOUR, lambda b: [book(chosen(b))])])]]
    )
    asking.config["branch"] = AskUserBranch(then=AskUserBranch())
    tree = asking.run()
    assert [node.branch.fidelity for node in tree.nodes if node.branch] == ["live"] * 3
    assert sorted(rows(leaf) for leaf in tree.leaves) == sorted(
        [day, hour] for day in ("monday", "friday") for hour in ("ten", "noon")
    )
    assert asking.agent.sessions[0].prompts == ["do it"]


def test_a_group_is_forked_live_between_two_turns(asking):
    role = Role(agent="fake")
    asking.config["scenes"] = (Scene(roles=(role,), turns=(Turn(), Turn(prompt="now"))),)
    asking.agent = FakeAgent([[Say("a"), book("first")], [Say("b"), book("second")]])
    asking.config["branch"] = GroupBranch(n=3, at=1)
    tree = asking.run()
    assert fork_of(tree).branch.fidelity == "live"
    assert [rows(leaf) for leaf in tree.leaves] == [["first", "second"]] * 3
    assert {s.process.id for s in asking.agent.sessions} == {asking.agent.sessions[0].process.id}


def test_the_best_is_restored_live_with_its_process(asking):
    role = Role(agent="fake")
    asking.config["scenes"] = (Scene(roles=(role,), turns=(Turn(), Turn(prompt="now"))),)
    asking.agent = FakeAgent([[Say("a"), book("first")], [Say("b"), book("friday")]])
    asking.config["branch"] = BestOfBranch(n=2)
    tree = asking.run()
    last = max(tree.leaves, key=lambda leaf: len(leaf.steps))
    assert rows(last) == ["first", "friday"]
    assert len(tree.leaves) == 2
    assert asking.agent.sessions[-1].prompts == ["do it", "now"]


def test_probes_of_a_live_question_are_answered_by_users_of_their_own(asking):
    asking.user_options["answer"] = lambda ask: Answer.choose(ask, "friday")
    asking.config["branch"] = ValueBranch(n=2)
    tree = asking.run()
    fork = next(n for n in tree.nodes if n.step is not None and n.step.ask is not None)
    assert fork.branch.fidelity == "live"
    assert len(fork.children) == 3
    assert sum(len(user.asked) for user in asking.users) >= 3
    assert all(leaf.reward == 1.0 for leaf in tree.leaves)


# The invariants of the design, section 6, at every fidelity.


def at(rig, fidelity):
    """Let forks of `rig` reach `fidelity` and no more: a question, or a turn's start."""
    turns = (Turn(), Turn(prompt="now"))
    rig.config["scenes"] = (Scene(roles=(Role(agent="fake"),), turns=turns),)
    first, second = [Say("a"), book("before")], [Say("b")]
    if fidelity == "live":
        rig.live()
    if fidelity == "state":
        rig.config["branch"] = GroupBranch(n=2, at=1)
    else:
        rig.config["branch"] = AskUserBranch(require=fidelity)
        second.append(Pose(DAY, lambda a: [book(chosen(a)), Say("booked")]))
    rig.agent = FakeAgent([first, second])
    rig.environment_options.update(tables={"events": []})
    rig.rewards = [FakeReward(lambda node, _: float(len(rows(node))))]


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_a_zero_delta_branch_gives_every_child_what_the_linear_run_gets(rig, fidelity):
    at(rig, fidelity)
    branched = rig.config["branch"]
    rig.config["branch"] = None
    rig.user_options["answer"] = lambda ask: Answer.choose(ask, "monday")
    linear = rig.run().leaves[0].reward
    rig.again("tree")
    rig.config["branch"] = branched
    tree = rig.run()
    assert fork_of(tree).branch.fidelity == fidelity
    assert [leaf.reward for leaf in tree.leaves] == [linear] * 2


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_nothing_of_a_sibling_is_ever_seen(rig, fidelity):
    at(rig, fidelity)
    secrets = iter(["red", "blue"])

    async def whisper(session):
        word = next(secrets)
        found = (await session.sandbox.exec("cat booked.txt")).stdout
        await session.sandbox.exec(f"echo {word} >> booked.txt")
        return found

    if fidelity == "state":
        rig.agent._turns[1] = [Say("b"), Act(whisper)]
    else:
        rig.agent._turns[1] = [Say("b"), Pose(DAY, lambda _: [Act(whisper)])]
    tree = rig.run()
    seen = [step.observations[-1].content for leaf in tree.leaves for step in leaf.steps[-1:]]
    assert seen == ["before\n"] * 2


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_no_image_box_or_slot_is_left_by_children_that_die(rig, fidelity):
    at(rig, fidelity)
    rig.agent.faults.fail_on["attach" if fidelity == "live" else "connect"] = AgentError("no")
    if fidelity != "live":
        born = iter(range(100))
        connect = rig.agent.connect

        async def first_only(*args, **options):
            if next(born) == 0:
                rig.agent.faults.fail_on.clear()
            else:
                rig.agent.faults.fail_on["connect"] = AgentError("no")
            return await connect(*args, **options)

        rig.agent.connect = first_only
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == "agent"
    assert [child.error.message for child in fork_of(tree).children] == ["no", "no"]


# A fault at every step of a live checkpoint.

STEPS = {
    "model line": ("gateway", "quiesce", None),
    "servers": ("environment", "quiesce", None),
    "freeze": ("provider", "freeze", "snapshot"),
    "environment": ("environment", "query", None),
    "services": ("environment", "live_services", None),
    "session": ("agent", "capture", None),
    "files and processes": ("provider", "snapshot:live", None),
}
"""Who breaks, where, and what the rollout then fails at; `None`: it goes on without live."""


def break_step(rig, step, fault):
    """Break one step of every checkpoint from the question on."""
    place, operation, _ = STEPS[step]
    armed = asyncio.Event()

    async def arm(session):
        faults = {
            "gateway": lambda: rig.gateway.faults,
            "provider": lambda: rig.provider.faults,
            "environment": lambda: rig.environments[0].faults,
            "agent": lambda: rig.agent.faults,
        }[place]()
        if fault == "hang":
            faults.hang_on.add(operation)
        else:
            faults.fail_on[operation] = fault
        armed.set()
        return "armed"

    def after(answer):
        heal(rig)
        return [book(chosen(answer)), Say("booked")]

    rig.agent = FakeAgent([[Say("hm"), book("before"), Act(arm), Pose(DAY, after)]])
    return armed


def heal(rig):
    for faults in (rig.agent.faults, rig.provider.faults, rig.gateway.faults):
        faults.fail_on.clear()
        faults.hang_on.clear()


@pytest.mark.parametrize("fault", [SnapshotError("broken"), RuntimeError("broken")])
@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_fault_at_any_step_leaves_nothing_visible(asking, step, fault, with_model):
    with_model(asking)
    break_step(asking, step, fault)
    tree = asyncio.run(asking.run_async())
    heal(asking)
    asking.check_clean()
    checkpoints = [event for event in asking.events if event.kind == "checkpointed"]
    if tree.status == "failed":
        assert tree.error.boundary == STEPS[step][2]
        assert len(checkpoints) == 1
        return
    fork = fork_of(tree)
    assert fork.branch.fidelity in {"live", "replay"}
    assert len(checkpoints) == (2 if fork.branch.fidelity == "live" else 1)
    if fork.branch.fidelity == "replay":
        assert fork.branch.reason.startswith("not live: ")
        assert "broken" in fork.branch.reason


def test_a_step_that_hangs_is_given_up_at_the_deadline(asking, with_model):
    with_model(asking)
    break_step(asking, "files and processes", "hang")
    asking.deadlines(provision=3)
    tree = asking.run()
    assert fork_of(tree).branch.fidelity == "replay"
    assert "did not end within 3 s" in fork_of(tree).branch.reason


@pytest.mark.parametrize("step", sorted(STEPS))
def test_cancellation_at_any_step_of_a_checkpoint_leaves_nothing(asking, step, with_model):
    with_model(asking)
    armed = break_step(asking, step, "hang")

    async def main():
        task = asyncio.get_running_loop().create_task(asking.run_async())
        await armed.wait()
        for _ in range(50):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    asking.check_clean()
    assert [event.kind for event in asking.events].count("checkpointed") == 1


def test_a_fault_after_the_image_was_sealed_discards_it(asking):
    """The thaw fails: the image exists by then, and must not stay."""

    class StuckFreeze(FakeSandboxProvider):
        def record(self, operation, subject):
            if operation == "thaw" and len(self.images) > 1:
                raise SnapshotError("the freezer is stuck")
            super().record(operation, subject)

    asking.provider = StuckFreeze()
    tree = asking.run()
    fork = fork_of(tree)
    assert fork.branch.fidelity == "replay"
    assert "the freezer is stuck" in fork.branch.reason
    assert len([event for event in asking.events if event.kind == "checkpointed"]) == 1


def test_a_passing_cause_is_tried_again(asking):
    tries = []
    make = asking.agent.connect

    async def connect(*args, **options):
        session = await make(*args, **options)
        carry = session.capture

        async def third_time():
            tries.append("capture")
            if len(tries) < 3:
                raise SnapshotError("busy", retryable=True)
            return await carry()

        session.capture = third_time
        return session

    asking.agent.connect = connect
    tree = asking.run()
    assert fork_of(tree).branch.fidelity == "live"


def test_a_demanded_live_fork_that_fails_is_a_fidelity_error_at_the_question(asking):
    asking.config["branch"] = AskUserBranch(require="live")
    asking.provider.faults.fail_on["snapshot:live"] = SnapshotError("io_uring is in use")
    tree = asking.run()
    assert tree.status == "failed"
    assert tree.error.type == "FidelityError"
    assert "io_uring is in use" in tree.error.message
    assert [event for event in asking.events if event.kind == "checkpointed"] == []


def test_a_checkpoint_below_the_required_fidelity_is_discarded(asking):
    asking.config["branch"] = GroupBranch(n=2, require="live")
    asking.provider.faults.fail_on["snapshot:live"] = SnapshotError("io_uring is in use")
    tree = asking.run()
    assert tree.error.type == "FidelityError"
    assert len(asking.provider.images) == 0


@pytest.mark.parametrize(
    "policy",
    [
        GroupBranch(n=2, require="live"),
        ValueBranch(n=2, require="live"),
        GroupBranch(n=2, then=AskUserBranch(require="live")),
    ],
)
def test_a_fidelity_that_cannot_be_had_is_refused_before_anything_starts(rig, policy):
    rig.config["branch"] = policy
    tree = rig.run()
    assert tree.error.type == "FidelityError"
    assert "turned off by the test" in tree.error.message
    assert rig.provider.log == []


def test_state_is_refused_for_an_agent_without_session_files(rig):
    mute = FakeAgent(
        [[Say("x")]],
        capabilities=rig.agent.capabilities().model_copy(update={"session_snapshot": "none"}),
    )
    rig.agent = mute
    rig.config["branch"] = GroupBranch(n=2, require="state")
    tree = rig.run()
    assert tree.error.type == "FidelityError"
    assert "'fake' has no session files" in tree.error.message
    assert rig.provider.log == []


def test_the_live_engine_is_named(asking):
    capabilities = FAKE_CAPABILITIES.model_copy(update={"live_engine": "criu"})
    asking.provider = FakeSandboxProvider(capabilities=capabilities)
    assert "criu" in fork_of(asking.run()).branch.reason


def test_a_live_child_whose_invariant_does_not_hold_is_lost_alone(asking):
    make = asking._environment

    def second_breaks():
        environment = make()
        if len(asking.environments) == 2:
            environment.faults.fail_on["check"] = EnvironmentError_("the books do not balance")
        return environment

    asking._environment = second_breaks
    tree = asking.run()
    fork = fork_of(tree)
    assert [c.error.message for c in fork.children if c.error] == ["the books do not balance"]
    assert fork.value.n == 1
