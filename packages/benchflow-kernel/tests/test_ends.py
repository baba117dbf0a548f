"""Which ends of an agent are graded, and which are faults."""

import asyncio

import pytest
from benchflow_contracts import (
    AgentError,
    AgentExitError,
    AgentTimeoutError,
    RewardError,
    Role,
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    SandboxTimeoutError,
    VerifyResult,
)
from benchflow_kernel import Scene
from benchflow_kernel.world import liveness
from benchflow_testing.fakes import (
    Act,
    Crash,
    FakeAgent,
    FakeReward,
    Hang,
    Say,
    Stop,
)


def test_an_agent_that_runs_out_of_time_is_graded_on_what_it_left(rig):
    async def write_file(session):
        return (await session.sandbox.exec("echo hello > out.txt")).stdout

    role = Role(agent="fake", timeout_sec=0.05)
    rig.config["scenes"] = (Scene(roles=(role,)),)
    rig.agent = FakeAgent([[Act(write_file), Say("next"), Hang()]])
    rig.rewards = [
        FakeReward(
            lambda _, evidence: float(
                evidence.world.sandbox.files.read("/workspace/out.txt") == b"hello\n"
            )
        )
    ]
    tree = rig.run()
    (leaf,) = tree.leaves
    assert tree.status == "completed"
    assert leaf.reward == 1.0
    assert leaf.error.type == "AgentTimeoutError"


def test_an_agent_whose_program_fails_is_graded_too_and_gets_no_further_turn(rig):
    rig.user_options["nudges"] = ["go on"]
    rig.task_config["agent"] = {"max_turns": 3}
    rig.agent.faults.fail_on["prompt"] = AgentExitError("exit code 3")
    tree = rig.run()
    (leaf,) = tree.leaves
    assert tree.status == "completed"
    assert leaf.reward == 1.0
    assert leaf.error.type == "AgentExitError"


@pytest.fixture
def probes(monkeypatch):
    """Probe sandboxes often."""
    monkeypatch.setattr(liveness, "EVERY_SEC", 0.01)


def test_a_sandbox_that_is_lost_in_a_turn_ends_the_turn_and_is_the_hosts_fault(rig, probes):
    async def fail(session):
        del session
        rig.provider.faults.fail_on["exec"] = SandboxLostError("it does not answer any more")
        return ""

    rig.agent = FakeAgent([[Act(fail), Hang()]])
    tree = rig.run()
    assert (tree.status, tree.error.type) == ("failed", "SandboxLostError")
    assert (tree.error.caused_by, tree.error.retryable) == ("host", True)
    assert [leaf.reward for leaf in tree.leaves] == [None]


@pytest.mark.parametrize("error", [SandboxTimeoutError("slow"), SandboxLimitError("no process")])
def test_a_probe_that_an_agent_can_prevent_proves_nothing(rig, probes, error):
    async def until_probed(session):
        probed = asyncio.Semaphore(0)

        async def fail(*_, **__):
            probed.release()
            raise error

        session.sandbox.exec = fail
        for _ in range(2):
            await probed.acquire()
        del session.sandbox.exec
        return ""

    rig.agent = FakeAgent([[Act(until_probed), Say("done")]])
    tree = rig.run()
    assert (tree.status, tree.error) == ("completed", None)
    assert tree.leaves[0].reward == 1.0


def test_the_execute_deadline_is_graded_too(rig):
    rig.deadlines(execute=0.05)
    rig.agent = FakeAgent([[Hang()]])
    tree = rig.run()
    assert tree.status == "completed"
    assert tree.leaves[0].reward == 1.0
    assert tree.leaves[0].error.type == "AgentTimeoutError"


def test_the_deadline_of_the_rollout_ends_the_turns_and_what_is_there_is_graded(rig):
    rig.config["deadline_sec"] = 0.3
    rig.agent = FakeAgent([[Hang()]])
    tree = rig.run()
    [leaf] = tree.leaves
    assert (tree.status, leaf.reward) == ("completed", 1.0)
    assert leaf.error.message == "the deadline of the rollout passed after 0.3 s"


def test_a_deadline_that_passed_before_the_first_turn_gives_the_agent_no_turn(rig):
    rig.config["deadline_sec"] = 1e-6
    tree = rig.run()
    [leaf] = tree.leaves
    assert (tree.status, leaf.reward, leaf.steps) == ("completed", 1.0, [])
    assert leaf.error.type == "AgentTimeoutError"


def test_a_user_who_holds_up_the_turns_is_not_the_agents_fault(rig):
    rig.deadlines(execute=0.05)
    rig.task_config["agent"] = {"max_turns": 2}
    rig.user_options["hang_on"] = {"nudge"}
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == "environment"
    assert rig.rewards[0].nodes == []


def test_an_agent_that_cannot_be_ended_is_never_scored_beside(rig):
    class Immortal(FakeAgent):
        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            session = await super().connect(sandbox, role, resume=resume, log_dir=log_dir)
            session.aclose = self._refuse
            return session

        async def _refuse(self):
            self.sessions[0].closed = True
            raise AgentError("still alive")

    rig.agent = Immortal([[Say("ok")]])
    tree = rig.run()
    assert tree.error.message == "still alive"
    assert rig.rewards[0].nodes == []


def test_a_connection_that_is_late_is_a_fault_and_not_graded(rig):
    rig.agent.faults.fail_on["connect"] = AgentTimeoutError("slow")
    tree = rig.run()
    assert tree.status == "failed"
    assert rig.rewards[0].nodes == []


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "max_turn_requests"])
def test_an_agent_that_stops_early_is_graded_and_gets_no_further_turn(rig, reason):
    rig.user_options["nudges"] = ["go on"]
    rig.task_config["agent"] = {"max_turns": 3}
    rig.agent = FakeAgent([[Say("no"), Stop(reason)], [Say("yes")]])
    tree = rig.run()
    (leaf,) = tree.leaves
    assert leaf.reward == 1.0
    assert reason in leaf.error.message
    assert len(leaf.steps) == 1


def test_a_crash_of_the_agent_is_never_graded(rig):
    rig.agent = FakeAgent([[Say("x"), Crash(AgentError("segfault"))]])
    tree = rig.run()
    assert tree.status == "failed"
    assert tree.error.boundary == "agent"
    assert rig.rewards[0].nodes == []


@pytest.mark.parametrize(
    "verdict",
    [None, RewardError("broken"), ZeroDivisionError("oops"), "not a result"],
)
def test_no_fault_of_a_reward_becomes_a_number(rig, verdict):
    class Odd:
        name = "reward"

        async def score(self, node, evidence):
            if isinstance(verdict, Exception):
                raise verdict
            return VerifyResult.unscored("no") if verdict is None else verdict

    rig.rewards = [Odd(), FakeReward(0.5, name="side")]
    tree = rig.run()
    (leaf,) = tree.leaves
    assert leaf.reward is None
    assert leaf.results["reward"].error
    assert leaf.results["side"].reward == 0.5
    assert leaf.results["reward"].cause is None or leaf.results["reward"].cause.by == "unknown"
    assert tree.status == "ungraded"


@pytest.mark.parametrize(
    ("fault", "passes"),
    [
        (RewardError("the grading box was killed", retryable=True), True),
        (SandboxError("killed", retryable=True), True),
        (RewardError("broken"), False),
        (ZeroDivisionError("oops"), False),
    ],
)
def test_a_verdict_says_whether_the_fault_that_left_it_without_a_score_passes(rig, fault, passes):
    rig.rewards = [FakeReward(fail_on={"score": fault})]
    verdict = rig.run().leaves[0].results["reward"]
    assert (verdict.reward, verdict.error_type) == (None, type(fault).__name__)
    assert verdict.retryable is passes


def test_a_reward_that_hangs_is_unscored_at_the_verify_deadline(rig):
    rig.deadlines(verify=0.05)
    rig.rewards = [FakeReward(hang_on={"score"}), FakeReward(1.0, name="side")]
    tree = rig.run()
    assert tree.leaves[0].reward is None
    assert "deadline" in tree.leaves[0].results["reward"].error


def test_a_reward_may_end_the_processes_only_when_no_later_reward_needs_them(rig):
    class Files(FakeReward):
        needs_processes = False

    allowed = {}

    def asks(name, kind):
        def verdict(_, evidence):
            allowed[name] = evidence.world.may_end_processes
            return 1.0

        return kind(verdict, name=name)

    rig.rewards = [
        asks("early", Files),
        asks("looks", FakeReward),
        asks("files", Files),
        asks("reward", Files),
    ]
    rig.run()
    assert allowed == {"early": False, "looks": True, "files": True, "reward": True}
