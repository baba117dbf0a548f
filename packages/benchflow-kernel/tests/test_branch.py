import asyncio
import math

import pytest
from benchflow_contracts import (
    AgentError,
    Answer,
    Ask,
    EnvironmentError_,
    Role,
    SandboxError,
    Value,
)
from benchflow_kernel import (
    AskUserBranch,
    BranchBudget,
    Scene,
    answer_weights,
    fold,
    trajectories,
)
from benchflow_testing.fakes import (
    FAKE_CAPABILITIES,
    Act,
    Crash,
    FakeAgent,
    FakeEnvironment,
    FakeReward,
    FakeSandboxProvider,
    Hang,
    Pose,
    Say,
    Stop,
    ask_with_options,
)
from booking import REWARDS, WHICH, book, booked, chosen, fork_of


def test_one_child_per_option_each_scored_and_valued(forked):
    tree = forked.run()
    fork = fork_of(tree)
    assert tree.status == "completed"
    assert {child.label: child.leaves[0].reward for child in fork.children} == REWARDS
    assert fork.value == Value(mean=0.5, n=3, variance=0.25, stderr=math.sqrt(0.25 / 3))
    assert tree.root.value.mean == 0.5
    assert fork.branch.fidelity == "replay"
    assert "middle of a turn" in fork.branch.reason
    assert {t.branch for t in trajectories(tree)} == {("monday",), ("tuesday",), ("friday",)}


def test_a_fork_records_how_probable_each_answer_of_the_user_is(forked):
    forked.user_options["probabilities"] = {"tuesday": 0.75, "friday": 0.25}
    tree = forked.run()
    fork = fork_of(tree)
    assert fork.branch.answers == {"monday": 0.0, "tuesday": 0.75, "friday": 0.25}
    expected = 0.75 * REWARDS["tuesday"] + 0.25 * REWARDS["friday"]
    assert (fork.value.mean, fork.value.weighting) == (expected, "answers")
    assert tree.root.value.mean == expected
    weights = answer_weights(tree)
    assert {leaf.path[2].label: weights[leaf.id] for leaf in tree.leaves} == fork.branch.answers
    assert not forked.users[0].asked, "a user that knows the probabilities was asked"


def test_a_user_without_probabilities_is_asked_once_for_a_fork(forked):
    class Plain:
        def __init__(self):
            self.answers = 0

        async def answer(self, ask, steps):
            self.answers += 1
            return Answer.choose(ask, "friday")

        async def nudge(self, steps):
            return None

        async def aclose(self):
            pass

    users = []
    forked._user = lambda: users.append(Plain()) or users[-1]
    forked.users = []
    tree = forked.run()
    assert fork_of(tree).branch.answers == {"monday": 0.0, "tuesday": 0.0, "friday": 1.0}
    assert fork_of(tree).value.mean == REWARDS["friday"]
    assert [user.answers for user in users] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [{"monday": 2.0}, {"monday": math.nan}, {"sunday": 1.0}, {"monday": 0.7, "friday": 0.7}],
)
def test_probabilities_that_are_none_end_the_rollout_unscored(forked, wrong):
    forked.user_options["probabilities"] = wrong
    tree = forked.run()
    assert tree.status == "failed"
    assert (tree.error.boundary, tree.error.type) == ("environment", "EnvironmentError_")
    assert "probabilities" in tree.error.message
    assert tree.root.value is None


def test_the_prefix_is_in_the_tree_once_and_each_answer_opens_its_own_edge(forked):
    tree = forked.run()
    fork = fork_of(tree)
    assert [step.ask.id for step in fork.steps if step.ask] == ["ask-1"]
    assert all(chosen(child.step.answer) == child.label for child in fork.children)
    assert len(list(tree.nodes)) == 2 + sum(len(list(c.subtree)) for c in fork.children)


def test_a_zero_delta_branch_gives_each_child_what_the_linear_run_gets(forked):
    rewards = {}
    for day in REWARDS:
        forked.directory = forked.directory.with_name(day)
        forked.config["branch"] = None
        forked.user_options["answer"] = lambda ask, day=day: Answer.choose(ask, day)
        forked.events.clear()
        rewards[day] = forked.run().leaves[0].reward
    forked.directory = forked.directory.with_name("tree")
    forked.config["branch"] = AskUserBranch()
    forked.events.clear()
    tree = forked.run()
    assert {c.label: c.leaves[0].reward for c in fork_of(tree).children} == rewards == REWARDS


def test_siblings_never_see_each_others_files_or_rows(forked):
    files = {}

    def look(node, evidence):
        text = evidence.world.sandbox.files.read("/workspace/booked.txt").decode()
        files[node.path[-1].steps[-1].id] = text
        return booked(node, evidence)

    forked.rewards = [FakeReward(look)]
    forked.run()
    assert sorted(files.values()) == ["before\nfriday\n", "before\nmonday\n", "before\ntuesday\n"]


def test_the_parents_world_is_gone_before_a_child_starts_and_the_budget_holds(forked):
    forked.config["branch"] = AskUserBranch(budget=BranchBudget(concurrency=1))
    forked.run()
    worlds = [entry for entry in forked.provider.log if entry[0] in {"create", "teardown"}]
    open_now = 0
    for operation, _ in worlds:
        open_now += 1 if operation == "create" else -1
        assert open_now <= 1
    assert [operation for operation, _ in worlds].count("create") == 4


def test_a_child_with_a_free_slot_does_not_wait_for_the_teardown_of_its_parent(forked):
    started = asyncio.Event()

    class Slow(FakeEnvironment):
        async def provision(self, ctx):
            if self is not forked.environments[0]:
                started.set()
            return await super().provision(ctx)

        async def teardown(self):
            await started.wait()  # would last until the deadline if no child started
            await super().teardown()

    def make():
        forked.environments.append(Slow(**forked.environment_options))
        return forked.environments[-1]

    forked._environment = make
    forked.deadlines(teardown=20)
    tree = forked.run()
    assert tree.status == "completed"
    assert tree.error is None
    assert started.is_set()


def test_the_checkpoint_is_taken_inside_one_freeze_before_the_prompt(forked):
    forked.run()
    operations = forked.provider.operations
    assert operations[operations.index("freeze") :][:4] == [
        "freeze",
        "download",
        "snapshot",
        "thaw",
    ]
    (checkpoint,) = [event for event in forked.events if event.kind == "checkpointed"]
    assert set(checkpoint.layers) == {"sandbox", "environment"}
    assert checkpoint.node == "n0"


def test_children_log_below_their_own_directory(forked):
    verifiers = []
    forked.rewards = [FakeReward(lambda _, evidence: verifiers.append(evidence.log_dir) or 1.0)]
    tree = forked.run()
    homes = {forked.directory / "branches" / child.id for child in fork_of(tree).children}
    assert len(homes) == 3
    assert {path.parent for path in verifiers} == homes
    root, *agents = [session.log_dir for session in forked.agent.sessions]
    assert root == forked.directory / "agent"
    assert {path.parent for path in agents} == homes


def test_children_that_fail_are_lost_alone_and_left_out_of_the_mean(forked):
    def moves(answer):
        if chosen(answer) == "monday":
            return [Crash(AgentError("died"))]
        return [book(chosen(answer)), Say("booked")]

    forked.agent = FakeAgent([[book("before"), Pose(WHICH, moves)]])
    tree = forked.run()
    fork = fork_of(tree)
    lost = next(child for child in fork.children if child.error)
    assert lost.label == "monday"
    assert lost.step is None
    assert lost.error.boundary == "agent"
    assert fork.value.n == 2
    assert fork.value.mean == 0.75
    assert tree.status == "completed"


def test_a_child_that_fails_after_a_step_keeps_it(forked):
    def moves(answer):
        tail = [Crash(AgentError("died"))] if chosen(answer) == "friday" else []
        return [book(chosen(answer)), Say("booked"), *tail]

    forked.agent = FakeAgent([[book("before"), Pose(WHICH, moves)]])
    tree = forked.run()
    lost = next(child for child in fork_of(tree).children if child.label == "friday")
    assert lost.leaves[0].error.message == "died"
    assert lost.leaves[0].reward is None


def test_when_every_child_is_lost_the_rollout_failed(forked):
    forked.agent = FakeAgent([[book("before"), Pose(WHICH, lambda _: [Crash(AgentError("died"))])]])
    tree = forked.run()
    assert tree.status == "failed"
    assert tree.error.message == "died"
    assert fork_of(tree).value is None


def test_a_child_that_runs_out_of_time_is_graded(forked):
    forked.config["scenes"] = (Scene(roles=(Role(agent="fake", timeout_sec=0.2),)),)

    def moves(answer):
        tail = [Say("x"), Hang()] if chosen(answer) == "tuesday" else [Say("booked")]
        return [book(chosen(answer)), *tail]

    forked.agent = FakeAgent([[book("before"), Pose(WHICH, moves)]])
    tree = forked.run()
    late = next(child for child in fork_of(tree).children if child.label == "tuesday")
    assert late.leaves[0].error.type == "AgentTimeoutError"
    assert late.leaves[0].reward == 1.0


def test_more_options_than_the_budget_go_to_the_user(forked):
    forked.config["branch"] = AskUserBranch(budget=BranchBudget(max_children=2))
    forked.user_options["answer"] = lambda ask: Answer.choose(ask, "tuesday")
    tree = forked.run()
    assert len(tree.leaves) == 1
    assert tree.leaves[0].reward == 1.0
    assert tree.root.value is None


@pytest.mark.parametrize(
    "ask",
    [
        WHICH.model_copy(update={"kind": "permission"}),
        ask_with_options("only one?", "monday"),
        ask_with_options("twice?", "monday", "monday"),
        ask_with_options("free?", allow_custom=True),
    ],
)
def test_what_is_not_a_finite_question_is_the_users(forked, ask):
    forked.agent = FakeAgent([[Pose(ask), book("before"), book("monday"), Say("ok")]])
    tree = forked.run()
    assert len(tree.leaves) == 1
    assert len(forked.users[0].asked) == 1


def test_earlier_asks_of_the_turn_are_answered_from_the_record(forked):
    gate = Ask(id="p", channel="permission", kind="permission", questions=WHICH.questions)
    asked = iter(range(100))

    def once(ask):
        assert next(asked) == 0, "a child asked the user again"
        return Answer.choose(ask, "friday")

    forked.user_options["answer"] = once
    forked.agent = FakeAgent(
        [
            [
                Pose(gate, lambda answer: [Say(chosen(answer))]),
                book("before"),
                Pose(WHICH, lambda answer: [book(chosen(answer)), Say("booked")]),
            ]
        ]
    )
    tree = forked.run()
    assert len(tree.leaves) == 3
    sessions = forked.agent.sessions
    assert [chosen(session.answers[0]) for session in sessions] == ["friday"] * 4


def test_a_child_that_asks_something_else_diverged_and_is_unscored(forked):
    questions = iter(["which day?", "which day?", "which hour?", "which day?"])

    class Fickle(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            text = next(questions)
            ask = ask_with_options(text, "monday", "tuesday", "friday")
            self._turns = [
                [book("before"), Pose(ask, lambda answer: [book(chosen(answer)), Say("ok")])]
            ]
            return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    forked.agent = Fickle()
    forked.config["branch"] = AskUserBranch(budget=BranchBudget(concurrency=1))
    tree = forked.run()
    fork = fork_of(tree)
    lost = [child for child in fork.children if child.error]
    assert [child.label for child in lost] == ["tuesday"]
    assert lost[0].error.type == "SnapshotError"
    assert "diverged" in lost[0].error.message
    assert "which hour?" in lost[0].error.message
    assert fork.value.n == 2


def test_a_child_that_never_asks_again_diverged(forked):
    class Forgetful(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            if self.sessions:
                self._turns = [[book("before"), Say("never mind")]]
            return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    forked.agent = Forgetful(forked.agent._turns)
    tree = forked.run()
    assert tree.status == "failed"
    assert "ended its turn" in tree.error.message
    assert all(child.step is None for child in fork_of(tree).children)


@pytest.mark.parametrize("end", [Hang(), Stop("refusal")])
def test_a_child_that_gives_up_before_the_fork_is_lost_and_not_graded(forked, end):
    forked.config["scenes"] = (Scene(roles=(Role(agent="fake", timeout_sec=0.2),)),)

    class Tired(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            if self.sessions:
                self._turns = [[book("before"), Say("so tired"), end]]
            return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    forked.agent = Tired(forked.agent._turns)
    tree = forked.run()
    assert tree.status == "failed"
    assert tree.error.type == "SnapshotError"
    assert forked.rewards[0].nodes == []


def test_a_child_whose_world_differs_from_the_checkpoint_never_gets_a_prompt(forked):
    make = forked._environment

    def tampered():
        environment = make()
        if len(forked.environments) > 1:
            provision = environment.provision

            async def wrong(ctx):
                handle = await provision(ctx)
                await environment.world.insert("events", ("ghost",))
                return handle

            environment.provision = wrong
        return environment

    forked._environment = tampered
    tree = forked.run()
    assert [len(session.prompts) for session in forked.agent.sessions if session.prompts] == [1]
    assert tree.error.type == "SnapshotError"
    assert "checkpoint" in tree.error.message


@pytest.mark.parametrize("require", ["live", "state"])
def test_a_fidelity_that_is_not_there_is_refused_before_anything_starts(forked, require):
    forked.config["branch"] = AskUserBranch(require=require)
    tree = forked.run()
    assert tree.error.type == "FidelityError"
    assert require in tree.error.message
    assert forked.provider.log == []


def test_a_provider_that_cannot_checkpoint_is_refused_before_anything_starts(forked):
    lacking = FAKE_CAPABILITIES.model_copy(update={"snapshot_levels": frozenset()})
    forked.provider = FakeSandboxProvider(capabilities=lacking)
    tree = forked.run()
    assert tree.error.type == "FidelityError"
    assert forked.provider.log == []


def test_a_checkpoint_that_fails_ends_the_rollout_at_the_snapshot_boundary(forked):
    forked.provider.faults.fail_on["snapshot"] = RuntimeError("disk full")
    tree = forked.run()
    assert tree.error.boundary == "snapshot"
    assert tree.leaves[0].reward is None


def test_a_checkpoint_that_cannot_be_discarded_is_a_leak_and_no_failure(forked):
    forked.provider.faults.fail_on["discard"] = SandboxError("busy")
    tree = asyncio.run(forked.run_async())
    assert tree.status == "completed"
    assert tree.error.message == "busy"
    assert fork_of(tree).value.n == 3


def test_cancellation_tears_every_child_down(forked):
    reached = asyncio.Event()

    async def stall(session):
        reached.set()
        await asyncio.Event().wait()

    forked.agent = FakeAgent([[book("before"), Pose(WHICH, lambda _: [Act(stall)])]])

    async def main():
        task = asyncio.get_running_loop().create_task(forked.run_async())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    forked.check_clean()
    tree = fold(forked.events)
    forked.check_record(tree)
    assert tree.status == "cancelled"


def test_a_childs_environment_failure_is_its_own(forked):
    make = forked._environment

    def third_breaks():
        environment = make()
        if len(forked.environments) == 3:
            environment.faults.fail_on["provision"] = EnvironmentError_("no port")
        return environment

    forked._environment = third_breaks
    tree = forked.run()
    errors = [child.error for child in fork_of(tree).children if child.error]
    assert [error.message for error in errors] == ["no port"]
    assert fork_of(tree).value.n == 2
