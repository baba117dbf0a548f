"""Checks that a rollout of the kernel runs and is graded in the provider's sandboxes."""

import asyncio
from pathlib import Path

from benchflow_contracts.sandbox import SupportsKillAll
from benchflow_contracts.task import Task, TaskConfig
from benchflow_kernel import AutoUser, Planes, RolloutConfig, run_rollout
from benchflow_reward import make_rewards

from benchflow_testing.check import CheckSkippedError, expect, expect_equal, promise
from benchflow_testing.fakes import Act, FakeAgent, FakeSession
from benchflow_testing.sandbox_subject import SandboxCheck, SandboxSubject

_TEST = """#!/bin/sh
reward=0
[ "$(cat ANSWER)" != 42 ] || reward=1
echo "$reward" > /logs/verifier/reward.txt
"""
_PROGRAMS = "chown chmod mkdir rm ls cat"


def _cannot_grade(subject: SandboxSubject) -> str | None:
    can = subject.capabilities
    lacking = can.freeze == "none" and not can.kill_all
    return "capabilities: no freeze and no kill_all" if lacking else None


@promise(_cannot_grade)
async def a_rollout_is_graded(subject: SandboxSubject) -> None:
    """An agent writes the file that a task asks for, and the tests of the task give 1."""
    expect_equal(await _reward(subject, "echo 42 > answer"), 1.0, "the reward of a right answer")


@promise(_cannot_grade)
async def a_wrong_answer_earns_nothing(subject: SandboxSubject) -> None:
    """The tests give 0 to a wrong file, also while a process of the agent still writes."""
    loop = "(while :; do echo 42 > other; sleep 0.02; done) >/dev/null 2>&1 &"
    reward = await _reward(subject, f"echo 41 > answer; {loop}")
    expect_equal(reward, 0.0, "the reward of a wrong answer")


async def _reward(subject: SandboxSubject, command: str) -> float | None:
    await _needs_programs(subject)
    task = await asyncio.to_thread(_task, subject)

    async def act(session: FakeSession) -> str:
        return (await session.sandbox.exec(command)).stdout

    planes = Planes(
        provider=subject.provider,
        agents={"kit": FakeAgent([[Act(act)]], name="kit")},
        rewards=make_rewards(task),
        environment=None,
        user=AutoUser,
    )
    tree = await run_rollout(task, RolloutConfig.single("kit"), planes)
    expect(tree.error is None, f"the rollout failed: {tree.error}")
    (leaf,) = tree.leaves
    verdict = leaf.results["reward"]
    expect(verdict.error is None, f"the rollout is not graded: {verdict.error}")
    return verdict.reward


async def _needs_programs(subject: SandboxSubject) -> None:
    async with subject.open_sandbox() as sandbox:
        if subject.capabilities.freeze == "none":
            expect(
                isinstance(sandbox, SupportsKillAll),
                "kill_all is claimed, and the method is missing",
            )
        looked = await sandbox.exec(f"for p in {_PROGRAMS}; do command -v $p || exit 1; done")
        if not looked.ok:
            raise CheckSkippedError(f"the sandbox lacks one of the programs {_PROGRAMS}")


def _task(subject: SandboxSubject) -> Task:
    answer = subject.inside("answer")
    path = subject.folder()
    (path / "tests").mkdir()
    (path / "tests" / "test.sh").write_text(_TEST.replace("ANSWER", answer))
    spec = subject.spec
    config = {
        "name": "kit",
        "artifacts": [answer],
        "environment": {
            "image": spec.image,
            "network": spec.network,
            "allowed_hosts": spec.allowed_hosts,
            "user": spec.user,
            "workdir": spec.workdir,
        },
        "verifier": {"network": spec.network, "isolation": "hermetic"},
    }
    return Task(
        id="kit",
        path=Path(path),
        instruction="Write 42 to the file `answer`.",
        config=TaskConfig.model_validate(config),
        digest="0",
    )


ROLLOUT_CHECKS: tuple[SandboxCheck, ...] = (a_rollout_is_graded, a_wrong_answer_earns_nothing)
