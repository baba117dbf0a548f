"""The kit of an agent that acts on the host: the fake passes it, and it catches broken ones."""

import asyncio
from pathlib import Path

import pytest
from benchflow_contracts import Sandbox, Task, TaskConfig
from benchflow_testing import AgentSubject, check_agent
from benchflow_testing.checks.host_agent_checks import HOST_AGENT_CHECKS
from benchflow_testing.fakes import FakeHostAgent, FakeHostSession, FakeSandboxProvider

TASK = Task(
    id="t",
    path=Path("/none"),
    instruction="Note it.",
    config=TaskConfig(name="t"),
    digest="sha256:0",
    format="fake",
)
WRONG = TASK.model_copy(update={"id": "w", "format": "benchflow"})


async def note(task: Task, sandbox: Sandbox, prompt: str) -> str:
    """Write the id of the task into the sandbox; with the prompt "Wait.", never end."""
    done = await sandbox.exec(f"echo {task.id} > note; cat note")
    if prompt == "Wait.":
        await asyncio.Event().wait()
    return done.stdout


def failed(agent: FakeHostAgent, *, only: list[str] | None = None) -> dict[str, str]:
    subject = AgentSubject(
        agent, FakeSandboxProvider(), endless_prompt="Wait.", task=TASK, wrong_task=WRONG
    )
    results = asyncio.run(check_agent(subject, only=only))
    skipped = {result.name for result in results if result.status == "skipped"}
    assert skipped.isdisjoint(map(str, HOST_AGENT_CHECKS))
    return {result.name: result.reason for result in results if result.status == "failed"}


def test_the_fake_keeps_every_promise() -> None:
    assert failed(FakeHostAgent(note)) == {}


class KeepsOneTask(FakeHostAgent):
    def for_task(self, task: Task) -> FakeHostAgent:
        self.task = super().for_task(task).task
        return self


class TakesEveryTask(FakeHostAgent):
    def for_task(self, task: Task) -> FakeHostAgent:
        return FakeHostAgent(self._solve, task=task)


async def hide_errors(task: Task, sandbox: Sandbox, prompt: str) -> str:
    try:
        return await note(task, sandbox, prompt)
    except Exception:
        return "done"


def in_the_last_sandbox() -> FakeHostAgent:
    sandboxes: list[Sandbox] = []

    class Opens(FakeHostAgent):
        def for_task(self, task: Task) -> FakeHostAgent:
            return Opens(self._solve, task=task)

        async def connect(self, sandbox, role, *, resume=None, log_dir=None):
            sandboxes.append(sandbox)
            return await super().connect(sandbox, role, resume=resume, log_dir=log_dir)

    async def solve(task: Task, _: Sandbox, prompt: str) -> str:
        return await note(task, sandboxes[-1], prompt)

    return Opens(solve)


class RunsOn(FakeHostSession):
    async def run_turn(self, prompt):
        self.lost = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        return await super().run_turn(prompt)


class LeavesATask(FakeHostAgent):
    def for_task(self, task: Task) -> FakeHostAgent:
        return LeavesATask(self._solve, task=task)

    async def connect(self, sandbox, role, *, resume=None, log_dir=None):
        return RunsOn(TASK, sandbox, role, self._solve)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (KeepsOneTask(note), "each_task_has_an_agent_of_its_own"),
        (TakesEveryTask(note), "a_task_of_another_kind_is_refused"),
        (FakeHostAgent(hide_errors), "a_turn_acts_in_its_own_sandbox"),
        (in_the_last_sandbox(), "a_turn_acts_in_its_own_sandbox"),
        (LeavesATask(note), "nothing_of_an_abandoned_turn_runs_on"),
    ],
)
def test_a_broken_agent_fails_the_check_of_its_promise(agent: FakeHostAgent, name: str) -> None:
    assert list(failed(agent, only=[name])) == [name]
