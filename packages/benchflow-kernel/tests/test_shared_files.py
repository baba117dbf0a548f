"""Files that rollouts share are inside before the baseline, and outside before the grading."""

from dataclasses import replace

import pytest
from benchflow_contracts import SandboxLostError, TaskStep, VerifyResult
from benchflow_kernel import GroupBranch
from benchflow_testing.fakes import FakeReward


class Shared:
    """Notes what the sandbox has done when it is called."""

    def __init__(self, rig, error=None) -> None:
        self.calls: list[str] = []
        self.error = error
        self._operations = rig.provider.operations

    async def upload(self, sandbox) -> None:
        self.calls.append("upload")
        assert "set_baseline" not in self._operations

    async def download(self, sandbox) -> None:
        self.calls.append("download")
        if self.error is not None:
            raise self.error


@pytest.fixture
def share(rig, monkeypatch):
    def begin(error=None) -> Shared:
        shared, planes = Shared(rig, error), rig.planes
        monkeypatch.setattr(rig, "planes", lambda: replace(planes(), shared_files=shared))

        def score(_node, _evidence) -> VerifyResult:
            shared.calls.append("score")
            return VerifyResult(reward=1.0)

        rig.rewards = [FakeReward(score)]
        return shared

    return begin


def test_files_come_in_before_the_baseline_and_out_before_the_grading(rig, share):
    rig.config["isolation"] = "twin"
    shared = share()
    assert rig.run().status == "completed"
    assert shared.calls == ["upload", "download", "score"]
    assert "set_baseline" in rig.provider.operations


def test_files_come_out_before_the_grading_of_each_step(rig, share):
    rig.steps = tuple(TaskStep(name=name, instruction=name) for name in ("a", "b"))
    rig.config["isolation"] = "hermetic"
    shared = share()
    assert rig.run().status == "completed"
    assert shared.calls == ["upload", "download", "score", "download", "score"]


def test_a_sandbox_that_is_lost_before_the_files_are_out_is_not_graded(rig, share):
    shared = share(SandboxLostError("gone"))
    tree = rig.run()
    assert (tree.status, tree.leaves[0].error.type) == ("failed", "SandboxLostError")
    assert "score" not in shared.calls


def test_a_rollout_that_shares_files_cannot_fork(rig, share):
    rig.config["branch"] = GroupBranch(n=2)
    shared = share()
    error = rig.run().error
    assert (error.type, error.hint) == (
        "UsageError",
        "leave out --branch: each branch would leave other files",
    )
    assert shared.calls == []


def test_tests_between_steps_do_not_run_beside_shared_files(rig, share):
    rig.steps = (TaskStep(name="a", instruction="a"),)
    rig.config["isolation"] = "shared"
    shared = share()
    error = rig.run().error
    assert error.type == "UsageError"
    assert "step 'a' is graded in the agent's sandbox" in error.message
    assert shared.calls == []
