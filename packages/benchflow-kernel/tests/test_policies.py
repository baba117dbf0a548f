"""Group, value and best-of: the shapes of their trees, on fakes."""

import asyncio

import pytest
from benchflow_contracts import (
    AgentError,
    Answer,
    Role,
    SnapshotError,
)
from benchflow_kernel import (
    AskUserBranch,
    BestOfBranch,
    BranchBudget,
    GroupBranch,
    Scene,
    Turn,
    ValueBranch,
    trajectories,
)
from benchflow_testing.fakes import (
    Act,
    Crash,
    FakeAgent,
    FakeReward,
    FakeWorld,
    Pose,
    Say,
    ask_with_options,
)

DAY = ask_with_options("which day?", "monday", "friday")


def insert(*row, **each):
    """Write a row; `tell` draws one more value per session."""
    draws = each.get("draw")

    async def run(session):
        value = row if draws is None else (*row, next(draws))
        await FakeWorld(session.sandbox).insert("events", value)
        return "ok"

    return Act(run, title=f"insert {row}")


def rows(node):
    return node.env_state.databases["/state"]["events"].rows


def turns(rig, count, **policy):
    role = Role(agent="fake")
    prompts = tuple(Turn(prompt=f"turn {index}") for index in range(count))
    rig.config["scenes"] = (Scene(roles=(role,), turns=prompts),)
    rig.environment_options["tables"] = {"events": []}
    rig.rewards = [FakeReward(lambda node, _: float(rows(node)[-1][-1]))]


def counting(count, **options) -> FakeAgent:
    """Each turn writes its number and the next of a series of draws."""
    draws = iter(range(1000))
    return FakeAgent([[Say("ok"), insert(turn, draw=draws)] for turn in range(count)], **options)


def forks_of(tree):
    return [node for node in tree.nodes if node.branch is not None and node.branch.children]


def refusals(tree):
    return [n.branch.reason for n in tree.nodes if n.branch is not None and not n.branch.children]


def test_a_group_forks_at_its_turn_and_shares_the_prefix(rig):
    turns(rig, 3)
    rig.agent = counting(3)
    rig.config["branch"] = GroupBranch(n=3, at=1)
    tree = rig.run()
    (fork,) = forks_of(tree)
    assert fork.branch.fidelity == "state"
    assert "the turn had ended" in fork.branch.reason
    assert sorted(child.label for child in fork.children) == ["sample 1", "sample 2", "sample 3"]
    assert len(fork.path) == 2
    for leaf in tree.leaves:
        assert [row[0] for row in rows(leaf)] == [0, 1, 2]
        assert rows(leaf)[0] == (0, 0)
    assert fork.value.n == 3
    root, *children = rig.agent.sessions
    assert root.prompts == ["turn 0"]
    assert [child.prompts for child in children] == [["turn 1", "turn 2"]] * 3


def test_a_group_at_the_first_turn_is_forked_before_any_agent_ran(rig):
    turns(rig, 1)
    rig.agent = counting(1)
    rig.config["branch"] = GroupBranch(n=2)
    tree = rig.run()
    assert len(rig.agent.sessions) == 2
    assert sorted(child.label for child in tree.root.children) == ["sample 1", "sample 2"]
    assert tree.root.branch.fidelity == "state"


def test_a_group_of_an_agent_without_session_files_replays_the_turns(rig):
    turns(rig, 2)
    rig.agent = counting(2, fail_on={"snapshot": SnapshotError("no session files")})
    rig.config["branch"] = GroupBranch(n=2, at=1)
    tree = rig.run()
    (fork,) = forks_of(tree)
    assert fork.branch.fidelity == "replay"
    assert "no session files" in fork.branch.reason
    _, *children = rig.agent.sessions
    assert [child.prompts for child in children] == [["turn 0", "turn 1"]] * 2
    assert all(len(leaf.steps) == 2 for leaf in tree.leaves)


def test_every_child_is_reseeded_with_a_seed_of_its_own_that_is_the_same_again(rig):
    turns(rig, 1)
    rig.agent = counting(1)
    seeds = []
    make = rig._environment

    def recording():
        environment = make()

        async def reseed(seed):
            seeds.append(seed)

        environment.reseed = reseed
        return environment

    rig._environment = recording
    rig.config["branch"] = GroupBranch(n=3)
    rig.run()
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**63 for seed in seeds)
    again = list(seeds)
    seeds.clear()
    rig.directory = rig.directory.with_name("again")
    rig.events.clear()
    rig.run()
    assert sorted(seeds) == sorted(again)


def test_the_seed_of_a_rollout_reaches_each_world_and_gives_equal_forks(rig, monkeypatch):
    turns(rig, 1)
    rig.agent = counting(1)
    seen = []
    make = rig._environment

    def recording():
        environment = make()
        provision, seeds = environment.provision, []
        seen.append(seeds)

        async def note(ctx):
            seeds.append(ctx.seed)
            return await provision(ctx)

        async def reseed(seed):
            seeds.append(seed)

        monkeypatch.setattr(environment, "provision", note)
        monkeypatch.setattr(environment, "reseed", reseed)
        return environment

    rig._environment = recording
    rig.config |= {"branch": GroupBranch(n=2), "seed": 5}
    rig.run()
    first = [seeds for seeds in seen if seeds]
    assert sorted(seeds[0] for seeds in first) == [5, 5, 5]
    assert [5, 5] in first
    assert len({seeds[1] for seeds in first}) == 3
    seen.clear()
    rig.directory = rig.directory.with_name("again")
    rig.rollout_id = "another"
    rig.events.clear()
    rig.run()
    assert sorted(seeds for seeds in seen if seeds) == sorted(first)


def test_a_child_whose_invariants_do_not_hold_never_gets_an_agent(rig):
    turns(rig, 1)
    rig.agent = counting(1)
    make = rig._environment

    def broken():
        environment = make()
        if len(rig.environments) == 2:
            environment.faults.fail_on["check"] = RuntimeError("the books do not balance")
        return environment

    rig._environment = broken
    rig.config["branch"] = GroupBranch(n=2)
    tree = rig.run()
    (lost,) = [child for child in tree.root.children if child.error]
    assert lost.error.boundary == "environment"
    assert "books" in lost.error.message
    assert len(rig.agent.sessions) == 1
    assert tree.root.value.n == 1


def test_value_probes_every_boundary_while_the_line_goes_on(rig):
    turns(rig, 2)
    rig.agent = counting(2)
    rig.config["branch"] = ValueBranch(n=2)
    tree = rig.run()
    first, second = forks_of(tree)
    assert first is tree.root
    for fork in (first, second):
        labels = [child.label for child in fork.children]
        assert sorted(map(str, labels)) == ["None", "sample 1", "sample 2"]
        assert fork.value.n == 3
    main = next(child for child in first.children if child.label is None)
    assert main is second
    assert [len(t.steps) for t in trajectories(tree)] == [2] * 5
    for leaf in tree.leaves:
        assert [row[0] for row in rows(leaf)] == [0, 1]


def test_value_skips_the_states_between_and_counts_questions(rig):
    turns(rig, 3)
    rig.agent = FakeAgent(
        [
            [Say("a"), insert(0, 0)],
            [Pose(DAY, lambda a: [insert(1, len(a.selected["q1"][0])), Say("b")])],
            [Say("c"), insert(2, 2)],
        ]
    )
    rig.user_options["answer"] = lambda ask: Answer.choose(ask, "friday")
    rig.config["branch"] = ValueBranch(n=2, every=2)
    tree = rig.run()
    # The states are: turn 0, turn 1, its question, turn 2.
    at_start, at_ask = forks_of(tree)
    assert at_start is tree.root
    assert at_ask.step.ask.id == DAY.id
    assert at_ask.branch.fidelity == "replay"
    assert all(leaf.reward == 2.0 for leaf in tree.leaves)


def test_a_main_line_that_fails_keeps_the_values_of_its_probes(rig):
    turns(rig, 1)
    calls = iter([True])

    class OnlyMainDies(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            main = next(calls, False)
            self._turns = [[Crash(AgentError("died"))] if main else [Say("ok"), insert(0, 7)]]
            return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    rig.agent = OnlyMainDies()
    rig.config["branch"] = ValueBranch(n=2)
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.message == "died"
    assert tree.root.value.n == 2
    assert tree.root.value.mean == 7.0


def test_best_of_goes_on_from_the_winner_and_its_state(rig):
    turns(rig, 3)
    rig.agent = counting(3)
    rig.config["branch"] = BestOfBranch(n=3, at=1)
    tree = rig.run()
    (fork,) = forks_of(tree)
    assert fork.branch.policy == "best-of"
    scores = {child.label: child.reward for child in fork.children}
    winner = max(fork.children, key=lambda child: child.reward)
    losers = [child for child in fork.children if child is not winner]
    assert len(set(scores.values())) == 3
    assert all(not child.children for child in losers)
    (last,) = winner.children
    assert last.label is None
    assert last.step.prompt == "turn 2"
    assert rows(last)[:2] == rows(winner)
    assert [row[0] for row in rows(last)] == [0, 1, 2]
    assert last.reward is not None


def test_best_of_the_last_turn_leaves_the_winner_as_the_final_leaf(rig):
    turns(rig, 1)
    rig.agent = counting(1)
    rig.config["branch"] = BestOfBranch(n=2)
    tree = rig.run()
    assert tree.status == "completed"
    assert [len(leaf.steps) for leaf in tree.leaves] == [1, 1]
    assert sum(event.kind == "node_scored" for event in rig.events) == 2


def test_best_of_replays_the_winner_of_an_agent_without_session_files(rig):
    turns(rig, 2)
    rig.agent = FakeAgent(
        [[Say("a"), insert(0, 1)], [Say("b"), insert(1, 2)]],
        fail_on={"snapshot": SnapshotError("no session files")},
    )
    rig.config["branch"] = BestOfBranch(n=2)
    tree = rig.run()
    assert tree.status == "completed"
    final = [leaf for leaf in tree.leaves if len(leaf.steps) == 2]
    assert len(final) == 1
    assert rows(final[0]) == ((0, 1), (1, 2))


def test_best_of_nothing_that_was_scored_says_so(rig):
    turns(rig, 2)
    rig.agent = counting(2)
    rig.rewards = [FakeReward(RuntimeError("no verdict"))]
    rig.config["branch"] = BestOfBranch(n=2)
    tree = rig.run()
    assert tree.root.error.type == "RewardError"
    assert "no child can continue" in tree.root.error.message
    assert all(leaf.reward is None for leaf in tree.leaves)


def test_policies_nest(rig):
    turns(rig, 2)
    rig.agent = counting(2)
    rig.config["branch"] = GroupBranch(n=2, then=GroupBranch(n=2, at=1))
    tree = rig.run()
    assert len(tree.leaves) == 4
    assert [len(t.branch) for t in trajectories(tree)] == [2] * 4
    assert tree.root.value.n == 2


def test_best_of_each_turn_is_a_greedy_walk(rig):
    turns(rig, 2)
    rig.agent = counting(2)
    rig.config["branch"] = BestOfBranch(n=2, then=BestOfBranch(n=2, at=1))
    tree = rig.run()
    first, second = forks_of(tree)
    assert second.parent is first
    assert second.reward == max(child.reward for child in first.children)
    assert len(tree.leaves) == 3


def test_a_question_within_a_group_is_forked_by_its_options(rig):
    turns(rig, 1)
    rig.agent = FakeAgent([[Pose(DAY, lambda a: [insert(0, len(a.selected["q1"][0])), Say("")])]])
    rig.config["branch"] = GroupBranch(n=2, then=AskUserBranch())
    tree = rig.run()
    assert sorted(t.branch for t in trajectories(tree)) == sorted(
        (f"sample {n}", day) for n in (1, 2) for day in ("monday", "friday")
    )


BUDGETS = {
    "children": ({"max_children": 2}, "max_children 2"),
    "forks": ({"max_forks": 1}, "max_forks 1 is reached"),
    "wall": ({"wall_sec": 1e-9}, "wall_sec 1e-09 is over"),
    "memory": ({"memory_mb": 1 << 40}, "memory_mb"),
}


@pytest.mark.parametrize("name", sorted(BUDGETS))
def test_a_spent_budget_stops_forking_with_a_reason_and_never_the_rollout(rig, name):
    limits, reason = BUDGETS[name]
    turns(rig, 2)
    rig.agent = counting(2)
    rig.config["branch"] = ValueBranch(n=3, budget=BranchBudget(**limits))
    tree = rig.run()
    assert tree.status == "completed"
    assert any(reason in told for told in refusals(tree))
    assert len(forks_of(tree)) == (1 if name == "forks" else 0)
    assert all(leaf.reward is not None for leaf in tree.leaves)


def test_a_fork_whose_own_checkpoint_has_no_room_is_not_made(rig):
    turns(rig, 2)
    rig.environment_options["tables"] = {"events": [[0, "x" * (1 << 20), 0]]}
    rig.agent = counting(2)
    rig.config["branch"] = ValueBranch(n=3, budget=BranchBudget(disk_mb=1))
    tree = rig.run()
    assert tree.status == "completed"
    assert forks_of(tree) == []
    [told] = refusals(tree)
    assert "of disk_mb 1" in told
    assert tree.leaves[0].reward is not None


def test_an_unforked_tree_has_no_value_and_no_credit(rig):
    turns(rig, 1)
    rig.agent = counting(1)
    rig.config["branch"] = GroupBranch(n=9)
    tree = rig.run()
    assert refusals(tree) == ["not forked: 9 children are more than max_children 8"]
    assert tree.root.value is None
    assert tree.root.credit is None


def test_a_fork_before_a_turn_that_cannot_come_is_refused_before_anything_starts(rig):
    turns(rig, 2)
    rig.config["branch"] = GroupBranch(n=2, at=2)
    tree = rig.run()
    assert tree.error.boundary == "usage"
    assert "before turn 2" in tree.error.message
    assert rig.provider.log == []


@pytest.mark.parametrize("kind", [GroupBranch, ValueBranch, BestOfBranch])
def test_k_of_n_children_lost_is_data(rig, kind):
    turns(rig, 1)
    born = iter(range(100))
    doomed = 1 if kind is ValueBranch else 0

    class OneDies(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            dies = next(born) == doomed
            self._turns = [[Crash(AgentError("died"))] if dies else [Say("ok"), insert(0, 7)]]
            return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    rig.agent = OneDies()
    rig.config["branch"] = kind(n=3, budget=BranchBudget(concurrency=1))
    tree = rig.run()
    assert tree.status == "completed"
    assert [child.error.message for child in tree.root.children if child.error] == ["died"]
    scored = [child for child in tree.root.children if child.reward is not None]
    assert tree.root.value.n == len(scored) == (3 if kind is ValueBranch else 2)


@pytest.mark.parametrize("kind", [GroupBranch, ValueBranch, BestOfBranch])
def test_cancellation_tears_down_every_line_of_every_policy(rig, kind):
    turns(rig, 2)
    reached = asyncio.Event()

    async def stall(session):
        reached.set()
        await asyncio.Event().wait()

    rig.agent = FakeAgent([[insert(0, 1), Act(stall)], [Say("never")]])
    rig.config["branch"] = kind(n=2)

    async def main():
        task = asyncio.get_running_loop().create_task(rig.run_async())
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    rig.check_clean()
