"""A rollout that is saved and ends, because its switch asks for it."""

import asyncio

import pytest
from benchflow_contracts import SnapshotError
from benchflow_contracts.pausing import PauseSwitch, pausable_by
from benchflow_kernel import AskUserBranch, saved_checkpoints
from benchflow_testing.fakes import (
    FAKE_WITHOUT_LIVE,
    Act,
    FakeAgent,
    FakeSandboxProvider,
    FakeUserModel,
    Pose,
    Say,
    ask_with_options,
)

DAY = ask_with_options("which day?", "monday", "friday")


@pytest.fixture
def asking(rig):
    """A rollout of two turns, the second of which asks. It keeps no checkpoint."""
    rig.live()
    rig.user_options["nudges"] = ["and now?"]
    rig.task_config["agent"] = {"max_turns": 2}
    rig.agent = FakeAgent([[Say("a")], [Say("b"), Pose(DAY, lambda _: [Say("c")])]])
    return rig


def play(rig, act):
    """Run a rollout beside `act`, and cancel the rollout when it is saved.

    Return the switch, and the tree if the rollout was not saved.
    """

    async def main():
        switch = PauseSwitch()
        with pausable_by(switch):
            async with asyncio.TaskGroup() as group:
                running = group.create_task(rig.run_async())
                switch.on_saved = running.cancel
                act(switch)
                await asyncio.wait([running])
        return switch, None if running.cancelled() else running.result()

    return asyncio.run(main())


def saved(rig):
    return [
        (manifest.turn, manifest.fidelity, manifest.ended)
        for _, manifest in saved_checkpoints(rig.directory)
    ]


def asked_by(switch):
    async def ask(session):
        del session
        switch.request_save()
        return ""

    return Act(ask)


def test_a_rollout_is_saved_at_the_start_of_its_next_turn(asking):
    assert play(asking, lambda switch: switch.request_save())[1] is None
    assert saved(asking) == [(0, "live", False)]


def test_without_live_snapshots_a_turn_is_saved_by_files(asking):
    asking.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
    play(asking, lambda switch: switch.request_save())
    assert saved(asking) == [(0, "state", False)]


def test_a_question_is_saved_while_its_user_thinks(asking):
    def act(switch):
        class ThinkingUser(FakeUserModel):
            async def answer(self, ask, steps):
                switch.request_save()
                return await asyncio.get_running_loop().create_future()

        asking._user = lambda: ThinkingUser(**asking.user_options)

    assert play(asking, act)[1] is None
    assert saved(asking) == [(1, "live", False)]


def test_an_ended_agent_is_saved_to_be_graded_later(asking):
    def act(switch):
        asking.agent = FakeAgent([[Say("a")], [Say("b"), asked_by(switch)]])

    assert play(asking, act)[1] is None
    assert [ended for _, _, ended in saved(asking)] == [True]


def test_an_ended_agent_whose_grading_needs_processes_is_graded_at_once(asking):
    asking.provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)

    def act(switch):
        asking.agent = FakeAgent([[Say("a")], [Say("b"), asked_by(switch)]])

    switch, tree = play(asking, act)
    assert (tree.status, tree.leaves[0].reward) == ("completed", 1.0)
    assert switch.save_refusal == "its grading needs processes, which cannot be saved"


def test_a_forked_rollout_and_one_without_room_run_on_and_say_why(asking):
    asking.config["branch"] = AskUserBranch()

    def act(switch):
        asking.agent = FakeAgent(
            [[Say("a")], [Say("b"), Pose(DAY, lambda _: [asked_by(switch), Say("c")])]]
        )

    switch, tree = play(asking, act)
    assert (tree.status, switch.save_refusal) == (
        "completed",
        "it has forked, and only a whole fork can be resumed",
    )
    asking.again("full")
    asking.config.pop("branch")
    asking.provider.faults.fail_on["save"] = SnapshotError("no room")
    switch, tree = play(asking, lambda switch: switch.request_save())
    assert tree.status == "completed"
    assert "no room" in switch.save_refusal
