"""Forks within forks, and in later turns."""

from benchflow_contracts import (
    Role,
    SnapshotError,
)
from benchflow_kernel import AskUserBranch, BranchBudget, Scene, Turn, trajectories
from benchflow_testing.fakes import (
    FakeAgent,
    FakeReward,
    Pose,
    Say,
    ask_with_options,
)
from booking import WHICH, book, chosen


def nested_agent() -> FakeAgent:
    day = ask_with_options("which day?", "monday", "friday")
    hour = ask_with_options("which hour?", "ten", "noon", ident="ask-2")
    return FakeAgent(
        [
            [
                Pose(
                    day,
                    lambda first: [
                        book(chosen(first)),
                        Pose(hour, lambda second: [book(chosen(second)), Say("booked")]),
                    ],
                )
            ]
        ]
    )


def test_forks_nest_up_to_the_depth(rig):
    score = {"monday": 0, "friday": 2, "ten": 0, "noon": 1}
    rig.environment_options["tables"] = {"events": []}
    rig.agent = nested_agent()

    def rows(node, _evidence):
        found = [row[0] for row in node.env_state.databases["/state"]["events"].rows]
        assert len(found) == 2
        return float(sum(score[name] for name in found))

    rig.rewards = [FakeReward(rows)]
    rig.config["branch"] = AskUserBranch(budget=BranchBudget(max_depth=2, concurrency=1))
    tree = rig.run()
    assert {t.branch: t.reward for t in trajectories(tree)} == {
        ("monday", "ten"): 0.0,
        ("monday", "noon"): 1.0,
        ("friday", "ten"): 2.0,
        ("friday", "noon"): 3.0,
    }
    forks = [node for node in tree.nodes if node.branch is not None]
    assert [node.value.mean for node in forks] == [1.5, 0.5, 2.5]
    assert tree.root.value.mean == 1.5
    assert all(node.value.n == 2 for node in forks)


def test_beyond_the_depth_the_user_answers_within_each_child(rig):
    rig.environment_options["tables"] = {"events": []}
    rig.agent = nested_agent()
    rig.config["branch"] = AskUserBranch(budget=BranchBudget(max_depth=1))
    tree = rig.run()
    assert len(tree.leaves) == 2
    assert sum(len(user.asked) for user in rig.users) == 2


def second_turn_agent(**options) -> FakeAgent:
    ask = ask_with_options("which day?", "monday", "friday")
    return FakeAgent(
        [
            [book("first turn"), Say("ready")],
            [Pose(ask, lambda answer: [book(chosen(answer)), Say("booked")])],
        ],
        **options,
    )


def two_turns(rig):
    role = Role(agent="fake")
    rig.config["scenes"] = (Scene(roles=(role,), turns=(Turn(), Turn(prompt="now book"))),)
    rig.environment_options["tables"] = {"events": []}
    rig.config["branch"] = AskUserBranch()


def test_a_fork_in_a_later_turn_starts_from_that_turns_checkpoint(rig):
    two_turns(rig)
    rig.agent = second_turn_agent()
    tree = rig.run()
    assert len(tree.leaves) == 2
    root, *children = rig.agent.sessions
    assert root.prompts == ["do it", "now book"]
    assert [child.prompts for child in children] == [["now book"]] * 2
    assert {child.id for child in children} == {root.id}
    refs = [event.ref for event in rig.events if event.kind == "checkpointed"]
    assert len(refs) == 2
    assert rig.provider.log.count(("discard", refs[0])) == 1


def test_a_session_that_cannot_be_carried_is_replayed_from_the_older_checkpoint(rig):
    two_turns(rig)
    rig.agent = second_turn_agent(fail_on={"snapshot": SnapshotError("no session files")})
    tree = rig.run()
    assert len(tree.leaves) == 2
    _, *children = rig.agent.sessions
    assert [child.prompts for child in children] == [["do it", "now book"]] * 2
    for leaf in tree.leaves:
        assert [step.prompt for step in leaf.steps if step.prompt] == ["do it", "now book"]
        rows = leaf.env_state.databases["/state"]["events"].rows
        assert rows[0] == ("first turn",)
        assert len(rows) == 2


def test_the_turns_after_a_fork_belong_to_each_child(rig):
    rig.task_config["agent"] = {"max_turns": 2}
    rig.user_options["nudges"] = ["anything else?"]
    rig.agent = FakeAgent([[Pose(WHICH, lambda _: [Say("ok")])], [Say("no")]])
    rig.config["branch"] = AskUserBranch()
    tree = rig.run()
    assert len(tree.leaves) == 3
    for leaf in tree.leaves:
        assert [step.prompt for step in leaf.steps if step.prompt] == ["do it", "anything else?"]
