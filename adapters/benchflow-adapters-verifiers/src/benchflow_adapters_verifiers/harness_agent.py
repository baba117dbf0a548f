"""An agent of another framework that works in a sandbox of BenchFlow, driven from the host."""

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from uuid import uuid4

from benchflow_contracts import (
    AgentCapabilities,
    AgentError,
    AgentNeeds,
    BaseAgent,
    BaseSession,
    Bundle,
    Door,
    Role,
    Sandbox,
    SessionSnapshot,
    Step,
    StopReason,
)

RunHarness = Callable[[Sandbox, str], Awaitable[str]]
"""Runs a harness on a prompt in a sandbox; returns its last message."""


class HarnessAgent(BaseAgent):
    """Lets `run` act on the first prompt of a rollout. Further prompts are refused."""

    name = "verifiers-harness"
    static_capabilities = AgentCapabilities(protocol="verifiers", nudges=False)

    def __init__(
        self,
        run: RunHarness,
        *,
        doors: Sequence[Door] = (),
        bundles: Sequence[Bundle] = (),
    ) -> None:
        self._run = run
        self._doors, self._bundles = tuple(doors), tuple(bundles)

    async def needs(self, role: Role) -> AgentNeeds:
        """Return the doors to the harness's endpoints, and the files of its programs."""
        del role
        return AgentNeeds(doors=self._doors, bundles=self._bundles)

    async def connect(
        self,
        sandbox: Sandbox,
        role: Role,
        *,
        resume: SessionSnapshot | None = None,
        log_dir: Path | None = None,
    ) -> "HarnessSession":
        """Open a session. Nothing starts before the first prompt."""
        del log_dir
        if resume is not None:
            raise AgentError("a harness of verifiers cannot continue from a checkpoint")
        return HarnessSession(sandbox, role, self._run)


def harness_agent() -> HarnessAgent:
    """Return the agent by which `BenchFlowEnv` names its harness. It cannot run alone.

    `BenchFlowEnv` puts an agent with its harness in the place of this one.
    """

    async def refuse(sandbox: Sandbox, prompt: str) -> str:
        del sandbox, prompt
        raise AgentError(
            "a harness of verifiers runs under verifiers' eval command alone",
            hint="vf-eval benchflow-adapters-verifiers --env.taskset.directory TASKS",
        )

    return HarnessAgent(refuse)


class HarnessSession(BaseSession):
    """One run of the harness."""

    def __init__(self, sandbox: Sandbox, role: Role, run: RunHarness) -> None:
        super().__init__(sandbox, role)
        self._run = run

    async def run_turn(self, prompt: str) -> StopReason:
        """Run the harness, and report the run as one step.

        Raises:
            AgentError: The harness failed, or the prompt is a second one.
            AgentTimeoutError: The harness did not end in time.
        """
        if self.steps:
            raise AgentError(
                "the task has a second prompt, and a harness of verifiers gets only one",
                hint="serve the task by bench serve, with an agent of BenchFlow",
            )
        began, message = time.time(), ""

        async def work() -> StopReason:
            nonlocal message
            message = await self._run(self.sandbox, prompt)
            return "end_turn"

        reason = await self.limit_turn(work())
        self.add_step(
            Step(
                id=uuid4().hex,
                role=self.role.name,
                prompt=prompt,
                message=message,
                stop_reason=reason,
                started_at=began,
                finished_at=time.time(),
            )
        )
        return reason
