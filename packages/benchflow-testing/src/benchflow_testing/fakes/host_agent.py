"""An agent that reads its task and acts on the host, as a solver of another framework does."""

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

from benchflow_contracts.agent import AgentCapabilities, Role, SessionSnapshot
from benchflow_contracts.base_agent import BaseAgent, BaseSession
from benchflow_contracts.errors import AgentError
from benchflow_contracts.sandbox import Sandbox
from benchflow_contracts.step import Step, StopReason
from benchflow_contracts.task import Task

Solve = Callable[[Task, Sandbox, str], Awaitable[str]]
"""Works on a task in its sandbox, by a prompt, and returns the message of the agent."""


class FakeHostAgent(BaseAgent):
    """Calls `solve` for each prompt. It works on tasks of one format."""

    name = "fake-host"
    static_capabilities = AgentCapabilities(protocol="fake-host", nudges=True)

    def __init__(self, solve: Solve, *, format: str = "fake", task: Task | None = None) -> None:  # noqa: A002 - as Task.format
        self._solve = solve
        self._format = format
        self.task = task

    def for_task(self, task: Task) -> "FakeHostAgent":
        """Return the agent of one task.

        Raises:
            AgentError: The task has another format.
        """
        if task.format != self._format:
            raise AgentError(
                f"task {task.id!r} has the format {task.format!r}, not {self._format!r}",
                hint="choose another agent",
            )
        return FakeHostAgent(self._solve, format=self._format, task=task)

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> "FakeHostSession":
        """Open a session.

        Raises:
            AgentError: The agent has no task, or a snapshot was given.
        """
        del log_dir
        if self.task is None or resume is not None:
            raise AgentError("a fake host agent needs a task, and has no snapshots")
        return FakeHostSession(self.task, sandbox, role, self._solve)


class FakeHostSession(BaseSession):
    """Runs `solve`, and records one step for each turn."""

    def __init__(self, task: Task, sandbox: Sandbox, role: Role, solve: Solve) -> None:
        super().__init__(sandbox, role)
        self.task = task
        self._solve = solve

    async def run_turn(self, prompt: str) -> StopReason:
        """Run `solve` to its end, until `cancel`, or as long as the role allows."""
        began, message = time.time(), ""

        async def work() -> StopReason:
            nonlocal message
            message = await self._solve(self.task, self.sandbox, prompt)
            return "end_turn"

        reason = await self.limit_turn(work())
        step = Step(
            id=uuid4().hex,
            role=self.role.name,
            prompt=prompt,
            message=message,
            stop_reason=reason,
            started_at=began,
            finished_at=time.time(),
        )
        self.add_step(step)
        return reason
