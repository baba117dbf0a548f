"""The base class of sessions without a protocol: the runner makes one step per turn."""

import time
from abc import ABC, abstractmethod

from benchflow_contracts import (
    AgentError,
    Answer,
    AskUserHandler,
    Role,
    SessionSnapshot,
    SessionState,
    SnapshotError,
    Step,
    StepHandler,
)
from benchflow_contracts.step import StopReason


class PlainSession(ABC):
    """A session that never asks. Subclasses implement a turn in `act`."""

    def __init__(self, agent: str, role: Role, cwd: str, *, steps_before: int = 0) -> None:
        self._agent = agent
        self._role = role
        self._cwd = cwd
        self._steps_before = steps_before
        self._steps: list[Step] = []
        self._handler: StepHandler | None = None
        self._closed = False

    @property
    def id(self) -> str:
        """The agent's name: each connect has one session."""
        return self._agent

    @property
    def steps(self) -> list[Step]:
        """The finished steps so far, in order."""
        return list(self._steps)

    @abstractmethod
    async def act(self, step: Step) -> Step:
        """Run the turn that `step` opens; return the step with its actions.

        Raises:
            AgentError: The turn failed. Call `finish` with the step first.
        """

    async def prompt(self, text: str) -> StopReason:
        """Run one turn, which is one step."""
        self._check_open()
        number = self._steps_before + len(self._steps) + 1
        now = round(time.time(), 6)
        step = Step(
            id=f"{self._agent}-{number}",
            role=self._role.name,
            skills=self._role.skills,
            prompt=text,
            started_at=now,
            finished_at=now,
        )
        result = await self.act(step)
        self.finish(result.model_copy(update={"stop_reason": "end_turn"}))
        return "end_turn"

    def finish(self, step: Step) -> None:
        """Record a step that has ended."""
        self.record(step.model_copy(update={"finished_at": max(step.started_at, time.time())}))

    def record(self, step: Step) -> None:
        """Add a finished step, and report the step."""
        self._steps.append(step)
        if self._handler is not None:
            self._handler(step)

    def _check_open(self) -> None:
        if self._closed:
            raise AgentError(f"the session of agent {self._agent!r} has ended")

    async def cancel(self) -> None:
        """Do nothing: the caller cancels the task of the turn."""
        return

    def on_ask_user(self, handler: AskUserHandler) -> None:
        """Ignore the handler, which is never called."""
        del handler

    def on_step(self, handler: StepHandler) -> None:
        """Call `handler` with each step as it finishes."""
        self._handler = handler

    async def snapshot(self) -> SessionSnapshot:
        """Return the number of steps. A plain session has no other state."""
        return SessionSnapshot(
            agent=self._agent,
            session_id=self.id,
            cwd=self._cwd,
            steps=self._steps_before + len(self._steps),
        )

    async def capture(self) -> SessionState:
        """Raise: the session has no process for a fork to copy.

        Raises:
            SnapshotError: Always.
        """
        raise SnapshotError(f"agent {self._agent!r} has no process to capture")

    async def answer(self, answer: Answer) -> StopReason:
        """Raise: a plain session never asks.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(f"agent {self._agent!r} did not ask: {answer.outcome!r}")

    async def aclose(self) -> None:
        """End the session. Idempotent."""
        self._closed = True
