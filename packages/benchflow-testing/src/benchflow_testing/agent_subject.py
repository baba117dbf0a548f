"""What the checks of an Agent work with."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from benchflow_contracts.agent import Agent, Role, Session, SessionSnapshot
from benchflow_contracts.ask import Answer, Ask
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec

from .check import Check


@dataclass(frozen=True, slots=True)
class AgentSubject:
    """An agent under test, the sandboxes it acts in, and prompts that it understands."""

    agent: Agent
    provider: SandboxProvider
    role: Role = field(default_factory=Role)
    spec: SandboxSpec = field(default_factory=SandboxSpec)
    prompt: str = "Say hello."
    """Ends by itself."""
    ask_prompt: str | None = None
    """Makes the agent ask a question with options."""
    endless_prompt: str | None = None
    """Keeps the agent busy until it is cancelled."""

    @asynccontextmanager
    async def box(self) -> AsyncGenerator[Sandbox, None]:
        """Create a sandbox with what the agent needs and tear it down in the end."""
        needs = await self.agent.needs(self.role)
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
        """Connect and close the session in the end."""
        session = await self.agent.connect(sandbox, self.role, resume=resume)
        try:
            yield session
        finally:
            await session.aclose()


AgentCheck = Check[AgentSubject]


@dataclass(slots=True)
class FirstOption:
    """Answers every Ask with the first option of each question, and notes it."""

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
