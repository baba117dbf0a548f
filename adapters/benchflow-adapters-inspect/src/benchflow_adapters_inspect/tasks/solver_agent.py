"""The agent `inspect-solver`: the solver of an Inspect task, run on the host in our rollout."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchflow_contracts import (
    MODEL_DOOR,
    AgentCapabilities,
    AgentError,
    BaseAgent,
    BaseSession,
    BenchFlowError,
    Observation,
    Role,
    Sandbox,
    SessionSnapshot,
    Step,
    StopReason,
    Task,
    TaskError,
    ToolCall,
)

from .sample_folder import FORMAT, SampleFolder, read_sample

_MOST_TEXT = 256 * 1024
"""Characters of one text of a step."""


class InspectSolverAgent(BaseAgent):
    """Runs the solver of the task. Its commands run in the sandbox, its model calls on the host.

    Each model call is a step. The limits of the task hold. A session has one prompt turn, and
    cannot be continued from a checkpoint: forks are at the start of the rollout.
    """

    name = "inspect-solver"
    static_capabilities = AgentCapabilities(protocol="inspect", nudges=False)

    def __init__(self, task: Task | None = None) -> None:
        self._task = task

    def for_task(self, task: Task) -> "InspectSolverAgent":
        """Return the agent of one sample.

        Raises:
            AgentError: The task is not a sample of Inspect.
        """
        if task.format != FORMAT:
            raise AgentError(
                f"task {task.id!r} has the format {task.format!r}, and no solver of Inspect",
                hint="use a task of the source `inspect:FILE.py@TASK`, or another agent",
            )
        return InspectSolverAgent(task)

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> "SolverSession":
        """Load the task. Nothing runs before the first prompt.

        Raises:
            AgentError: The task cannot be loaded, or the session has begun before a checkpoint.
        """
        del log_dir
        if resume is not None:
            raise AgentError("a solver of Inspect cannot continue from a checkpoint")
        if self._task is None:
            raise AgentError(
                "the agent 'inspect-solver' needs a sample of Inspect",
                hint="bench eval create -p inspect:FILE.py@TASK --agent inspect-solver",
            )
        try:
            return SolverSession(sandbox, role, read_sample(self._task.path))
        except TaskError as error:
            raise AgentError(str(error), hint=error.hint) from error


class SolverSession(BaseSession):
    """One run of the solver of one sample."""

    def __init__(self, sandbox: Sandbox, role: Role, folder: SampleFolder) -> None:
        super().__init__(sandbox, role)
        self.folder = folder

    async def run_turn(self, prompt: str) -> StopReason:
        """Run the solver to its end, to a limit of the task, or until `cancel`.

        The solver reads the sample, and not `prompt`, which is its instruction.

        Raises:
            AgentError: The solver failed, Inspect is missing, or the prompt is a second one.
            AgentTimeoutError: The solver did not end in time.
            SandboxError: The sandbox failed.
        """
        if self.steps:
            raise AgentError("a solver of Inspect has one prompt turn, and this is a second one")
        try:
            from .solving import solve  # noqa: PLC0415 - of the extra
        except ModuleNotFoundError as error:
            raise AgentError(
                f"the solver needs Inspect's package: {error}",
                hint="pip install 'benchflow-adapters-inspect[inspect]'",
            ) from error
        recorder = StepRecorder(self, prompt)
        door = self.sandbox.spec.door(MODEL_DOOR)
        endpoint = None if door is None else door.endpoint
        work = solve(self.folder, self.sandbox, endpoint, self.role.model, recorder)
        stop_reason: StopReason | None = None
        failure: BenchFlowError | None = None

        async def run() -> StopReason:
            nonlocal failure
            # The context variables of Inspect are set in a task, so they are gone after it.
            async with asyncio.TaskGroup() as group:
                solving = group.create_task(work)
            failure = solving.result()
            return "end_turn"

        try:
            reason = stop_reason = await self.limit_turn(run())
        finally:
            # A solver that was cut off has recorded the state that it reached.
            recorder.close(stop_reason)
        if failure is not None:
            raise failure
        return reason


class StepRecorder:
    """Makes a step of each model call, when the next call or the end shows what came of it."""

    def __init__(self, session: SolverSession, prompt: str) -> None:
        self._session = session
        self._prompt = prompt
        self._open: Step | None = None
        self._results: dict[str, Observation] = {}
        self.meta: dict[str, Any] = {}
        """Facts for the last step."""

    def on_request(self, results: Sequence[tuple[str, str, bool]]) -> None:
        """Take the tool results of a request, and end the step before it."""
        self.add_results(results)
        self._end(time.time())

    def add_results(self, results: Sequence[tuple[str, str, bool]]) -> None:
        """Take tool results as `(id of the call, text, failed)`."""
        for name, text, failed in results:
            self._results[name] = Observation(
                tool_call_id=name,
                status="failed" if failed else "completed",
                content=text[:_MOST_TEXT],
            )

    def on_answer(
        self,
        text: str,
        reasoning: str,
        calls: Sequence[tuple[str, str, object]],
        *,
        started_at: float,
    ) -> None:
        """Begin the step of an answer. `calls` are `(id, function, arguments)`."""
        now = time.time()
        self._end(now)
        self._open = Step(
            id=uuid4().hex,
            role=self._session.role.name,
            prompt=None if self._session.steps else self._prompt,
            message=text[:_MOST_TEXT],
            reasoning=reasoning[:_MOST_TEXT],
            tool_calls=tuple(
                ToolCall(id=name, title=function, name=function, raw_input=arguments)
                for name, function, arguments in calls
            ),
            started_at=started_at,
            finished_at=max(started_at, now),
        )

    def add_message(self, text: str) -> None:
        """Add a step for a solver that answers without a model."""
        now = time.time()
        self.on_answer(text, "", (), started_at=now)

    @property
    def count(self) -> int:
        """The number of answers so far."""
        return len(self._session.steps) + (self._open is not None)

    def close(self, stop_reason: StopReason | None) -> None:
        """End the last step."""
        if self._open is not None:
            update = {"meta": self.meta, "stop_reason": stop_reason}
            self._open = self._open.model_copy(update=update)
        self._end(time.time())

    def _end(self, now: float) -> None:
        step, self._open = self._open, None
        if step is None:
            return
        found = [self._results[c.id] for c in step.tool_calls if c.id in self._results]
        update = {"observations": tuple(found), "finished_at": max(step.started_at, now)}
        self._session.add_step(step.model_copy(update=update))
