"""Checkpoints of `--keep all` from which a rollout that was cut short resumes."""

import asyncio

import pytest
from benchflow_contracts import Role, SnapshotError, StoreError, TaskStep, UsageError
from benchflow_contracts.agent import AgentCapabilities
from benchflow_kernel import (
    AskUserBranch,
    EventLog,
    GroupBranch,
    Keep,
    RolloutConfig,
    Scene,
    Turn,
    continue_from,
    saved_checkpoints,
    step_verdicts,
    while_log_locked,
)
from benchflow_testing.fakes import (
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


class FileReward(FakeReward):
    """A reward that does not use the processes of the sandbox."""

    needs_processes = False


def book(word):
    async def run(session):
        await FakeWorld(session.sandbox).insert("events", (word,))
        return "ok"

    return Act(run, title=f"book {word}")


def rows(node):
    return [row[0] for row in node.env_state.databases["/state"]["events"].rows]


@pytest.fixture
def kept(rig):
    """Two turns, the second of which asks; every checkpoint is kept."""
    rig.environment_options["tables"] = {"events": []}
    turns = (Turn(prompt="one"), Turn(prompt="two"))
    rig.config["scenes"] = (Scene(roles=(Role(agent="fake"),), turns=turns),)
    rig.config["keep"] = Keep(which="all")
    rig.rewards = [FileReward(0.5)]
    rig.agent = FakeAgent(
        [[Say("a"), book("first")], [Say("b"), Pose(DAY, lambda _: [book("second"), Say("c")])]]
    )
    return rig


def resume(rig, path, **options):
    """Resume in another process, as far as the fakes can tell."""
    rig.provider = FakeSandboxProvider(capabilities=asyncio.run(rig.provider.capabilities()))
    rig.again("continued")
    for opened in (rig.users, rig.environments, rig.agent.sessions):
        opened.clear()

    async def main():
        return await continue_from(
            path,
            rig.task(),
            RolloutConfig(**{**rig.config, "keep": Keep()}),
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


def ends(rig):
    return [(path, saved) for path, saved in saved_checkpoints(rig.directory) if saved.ended]


def contents(tree):
    return [(step.prompt, step.message) for step in tree.leaves[0].steps]


def test_a_world_whose_agent_had_ended_is_only_graded(kept):
    first = kept.run()
    ((path, saved),) = ends(kept)
    assert (saved.fidelity, saved.node) == ("state", first.leaves[0].id)
    tree = resume(kept, path, meta={"resumed": "r1"})
    assert kept.agent.sessions == []
    assert contents(tree) == contents(first)
    assert [leaf.reward for leaf in tree.leaves] == [0.5]
    assert rows(tree.leaves[0]) == ["first", "second"]
    assert "execute" not in kept.phases
    assert tree.meta["resumed"] == "r1"
    assert "continued_from" not in tree.meta


def test_why_an_agent_ended_early_stays_in_the_graded_record(kept):
    kept.agent = FakeAgent([[Say("a"), Act(lambda _: asyncio.sleep(60))]])
    kept.deadlines(execute=0.2)
    first = kept.run()
    ((path, _),) = ends(kept)
    tree = resume(kept, path)
    assert tree.leaves[0].error == first.leaves[0].error
    assert tree.leaves[0].error.type == "AgentTimeoutError"
    assert tree.leaves[0].reward == 0.5


def test_a_prompt_runs_another_turn_after_the_end(kept):
    kept.run()
    ((path, _),) = ends(kept)
    resume(kept, path, prompt="three")
    (session,) = kept.agent.sessions
    assert session.prompts == ["three"]


@pytest.mark.parametrize("live", [True, False])
def test_a_grading_that_needs_processes_needs_a_live_end(kept, live):
    if live:
        kept.live()
    kept.rewards = [FakeReward(1.0)]
    kept.run()
    assert [saved.fidelity for _, saved in ends(kept)] == (["live"] if live else [])
    for path, _ in ends(kept):
        tree = resume(kept, path)
        assert tree.leaves[0].reward == 1.0
        assert kept.agent.sessions == []


def test_only_the_last_step_of_a_task_is_graded_again(kept):
    kept.steps = tuple(TaskStep(name=name, instruction=f"do {name}") for name in "ab")
    kept.config["scenes"] = (Scene(roles=(Role(agent="fake"),)),)
    kept.agent = FakeAgent([[Say("ok")]])
    first = kept.run()
    ((path, saved),) = ends(kept)
    assert saved.ungraded_step == 1
    kept.rewards[0].nodes.clear()
    tree = resume(kept, path)
    assert len(kept.rewards[0].nodes) == 1
    assert step_verdicts(tree.leaves[0]).keys() == step_verdicts(first.leaves[0]).keys()
    assert tree.leaves[0].reward == first.leaves[0].reward == 0.5


def test_an_end_that_cannot_be_captured_is_reported_and_the_rollout_is_graded(kept):
    kept.agent = FakeAgent([[Say("a")], [Act(fail_snapshots(kept))]])
    tree = kept.run()
    assert tree.status == "completed"
    assert tree.leaves[0].reward == 0.5
    assert "was not saved" in tree.error.message
    assert ends(kept) == []


def fail_snapshots(rig):
    async def run(_):
        rig.provider.faults.fail_on["snapshot"] = SnapshotError("no room")
        return "ok"

    return run


@pytest.mark.parametrize("policy", [GroupBranch(n=2), AskUserBranch()])
def test_an_end_below_a_fork_is_not_kept(kept, policy):
    kept.config["branch"] = policy
    kept.run()
    assert ends(kept) == []


def test_a_question_is_kept_live_and_answered_by_the_resumed_process(kept):
    kept.live()
    first = kept.run()
    asked = [(path, saved) for path, saved in saved_checkpoints(kept.directory) if saved.ask]
    ((path, saved),) = asked
    assert saved.fidelity == "live"
    tree = resume(kept, path)
    (session,) = kept.agent.sessions
    assert session.prompts == ["one", "two"]
    assert contents(tree) == contents(first)
    assert rows(tree.leaves[0]) == ["first", "second"]


def test_an_agent_without_session_files_is_kept_live_at_its_turns(kept):
    kept.live()
    kept.agent = FakeAgent(
        [[Say("a"), book("first")], [Say("b"), book("second")]],
        capabilities=AgentCapabilities(protocol="fake", session_snapshot="none"),
        fail_on={"snapshot": SnapshotError("no session files")},
    )
    kept.run()
    saved = [(one.turn, one.fidelity, one.ended) for _, one in saved_checkpoints(kept.directory)]
    assert saved == [(0, "state", False), (1, "live", False), (2, "state", True)]


def test_only_one_process_resumes_from_a_log_and_none_while_it_is_written(tmp_path):
    path = tmp_path / "r1" / "events.jsonl"
    log = EventLog(path)
    with pytest.raises(UsageError, match=r"'r1' is running, or is being resumed"):
        while_log_locked(path).__enter__()
    log.close()
    with while_log_locked(path), pytest.raises(UsageError, match="is running"):
        while_log_locked(path).__enter__()
    with pytest.raises(BlockingIOError), while_log_locked(path):
        raise BlockingIOError  # of the work under the lock
    with pytest.raises(StoreError, match="cannot be locked"):
        while_log_locked(tmp_path / "r2" / "events.jsonl").__enter__()
