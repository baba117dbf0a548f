"""The subject of the checks of an Agent."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from benchflow_contracts.agent import Agent, Role, Session, SessionSnapshot
from benchflow_contracts.ask import Answer, Ask
from benchflow_contracts.factories import SupportsTask
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from benchflow_contracts.task import Task

from .check import Check


@dataclass(frozen=True, slots=True)
class AgentSubject:
    """An agent under test, a provider for its sandboxes, and prompts that it understands."""

    agent: Agent
    provider: SandboxProvider
    role: Role = field(default_factory=Role)
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    prompt: str = "Say hello."
    """A prompt whose turn ends by itself."""
    ask_prompt: str | None = None
    """A prompt that makes the agent ask a question with options."""
    endless_prompt: str | None = None
    """A prompt that keeps the agent busy until the turn is cancelled."""
    task: Task | None = None
    """The task of an agent that `SupportsTask`. The turn of `prompt` acts in the sandbox."""
    wrong_task: Task | None = None
    """A task on which such an agent cannot work."""

    @property
    def task_agent(self) -> Agent:
        """The agent for `task`; `agent` itself if the agent does not read its task."""
        if self.task is None or not isinstance(self.agent, SupportsTask):
            return self.agent
        return self.agent.for_task(self.task)

    @asynccontextmanager
    async def open_sandbox(self) -> AsyncGenerator[Sandbox, None]:
        """Create a sandbox with the needs of the agent, and tear it down at the end."""
        needs = await self.task_agent.needs(self.role)
        spec = self.spec.model_copy(
            update={
                "bundles": (*self.spec.bundles, *needs.bundles),
                "env": {**self.spec.env, **needs.env},
            }
        )
        sandbox = await self.provider.create(spec)
        try:
            yield sandbox
        finally:
            await sandbox.teardown()

    @asynccontextmanager
    async def session(
        self, sandbox: Sandbox, *, resume: SessionSnapshot | None = None
    ) -> AsyncGenerator[Session, None]:
        """Connect, and close the session at the end."""
        session = await self.task_agent.connect(sandbox, self.role, resume=resume)
        try:
            yield session
        finally:
            await session.aclose()


AgentCheck = Check[AgentSubject]


@dataclass(slots=True)
class FirstOption:
    """Answers every Ask with the first option of each question, and records the Ask."""

    asked: list[Ask] = field(default_factory=list[Ask])
    answers: list[Answer] = field(default_factory=list[Answer])

    async def __call__(self, ask: Ask) -> Answer:
        """Answer `ask`; decline a question without options."""
        chosen = {q.id: (q.options[0].id,) for q in ask.questions if q.options}
        complete = len(chosen) == len(ask.questions)
        answer = Answer(selected=chosen) if complete else Answer(outcome="declined")
        self.asked.append(ask)
        self.answers.append(answer)
        return answer
