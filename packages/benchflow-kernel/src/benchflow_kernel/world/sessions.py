"""The agent sessions of one world."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchflow_contracts import (
    ActivityHandler,
    AskUserHandler,
    BenchFlowError,
    Role,
    Sandbox,
    Session,
    SessionSnapshot,
    SessionState,
    SnapshotError,
    StepHandler,
    SupportsActivity,
    SupportsCallForks,
)

from benchflow_kernel.faults import within
from benchflow_kernel.resolve import Plan, agent_of

CarriedSessions = Mapping[str, tuple[Role, SessionSnapshot]]
"""Sessions at a turn boundary, by role name, each with its role."""

LiveSessions = Mapping[str, tuple[Role, SessionState]]
"""Sessions whose processes are in a live image, by role name, each with its role."""


@dataclass(frozen=True, slots=True)
class SessionHandlers:
    """The callbacks of the sessions of one branch."""

    on_ask: AskUserHandler
    on_step: StepHandler
    on_activity: ActivityHandler


@dataclass(frozen=True, slots=True)
class LiveWorld:
    """The host's half of a world whose processes are in a live image."""

    services: Mapping[str, str]
    """Process ids of the environment's services, by name."""
    sessions: LiveSessions
    unused_agents: tuple[str, ...] = ()
    """Process ids of agents without a role here. They are ended first."""


class Sessions:
    """One session per role name, opened at the role's first turn.

    A role that a later scene declares differently gets a new session. In a world from a
    checkpoint, the first session of each role resumes from `carried`.
    """

    def __init__(self, plan: Plan, log_dir: Path | None, carried: CarriedSessions) -> None:
        self._plan = plan
        self._log_dir = log_dir
        self._carried = dict(carried)
        self._opened = 0
        self._open: dict[str, tuple[Role, Session]] = {}
        self._calling: str | None = None
        """The role whose agent waits for its model, inside `at_call`."""

    async def get(self, sandbox: Sandbox, role: Role, handlers: SessionHandlers) -> Session:
        """Return the session of `role`, connected and with its handlers set.

        Raises:
            AgentError: The agent did not start in time.
        """
        entry = self._open.get(role.name)
        if entry is not None and entry[0] == role:
            return entry[1]
        if entry is not None:
            await self._close(role.name)
        seconds = self._plan.config.deadlines.connect
        async with within(seconds, "agent", f"connecting role {role.name!r}"):
            session = await agent_of(self._plan.planes, role).connect(
                sandbox, role, resume=self._resume(role), log_dir=self._next_log_dir(role)
            )
        self._register(role, session, handlers)
        return session

    async def attach(self, sandbox: Sandbox, live: LiveSessions, handlers: SessionHandlers) -> None:
        """Attach to every session whose process came into `sandbox` with a live image.

        Raises:
            AgentError: A session cannot be continued.
        """
        seconds = self._plan.config.deadlines.connect
        for role, state in live.values():
            async with within(seconds, "agent", f"attaching to role {role.name!r}"):
                session = await agent_of(self._plan.planes, role).attach(
                    sandbox, role, state, log_dir=self._next_log_dir(role)
                )
            self._register(role, session, handlers)

    @property
    def any_opened(self) -> bool:
        """Whether an agent was started or attached in this world."""
        return self._opened > 0

    @property
    def unopened(self) -> CarriedSessions:
        """The carried sessions that no turn has opened yet."""
        return {name: session for name, session in self._carried.items() if name not in self._open}

    async def snapshot(self) -> CarriedSessions:
        """Return the state of every open session, and the carried ones that are not open.

        Raises:
            SnapshotError: A session cannot be carried into another sandbox.
        """
        snapshots = {
            name: (role, await session.snapshot()) for name, (role, session) in self._open.items()
        }
        return {**self._carried, **snapshots}

    async def capture(self) -> LiveSessions:
        """Return the host's half of every open session, while the sandbox is frozen.

        Raises:
            SnapshotError: A session cannot be carried from this point.
        """
        return {
            name: (role, await self._capture(name, session))
            for name, (role, session) in self._open.items()
        }

    async def _capture(self, name: str, session: Session) -> SessionState:
        if name != self._calling:
            return await session.capture()
        return await call_forks_of(session, name).capture_at_call()

    @contextmanager
    def at_call(self, role: str) -> Generator[None]:
        """Inside this block, `capture` captures the session of `role` within its turn."""
        self._calling = role
        try:
            yield
        finally:
            self._calling = None

    async def end_step(self, role: str, *, also_empty: bool) -> None:
        """End the open step of `role`, whose agent waits for its model, also an empty one.

        Raises:
            SnapshotError: The agent does not only wait for its model, or its session cannot be
                forked there.
        """
        await call_forks_of(self._open[role][1], role).end_step(also_empty=also_empty)

    async def aclose(self) -> None:
        """End every agent. Idempotent. The next turn of a role opens a new session.

        Close every session, then raise the first error.
        """
        self._carried.clear()
        errors: list[BenchFlowError] = []
        for name in reversed(list(self._open)):
            try:
                await self._close(name)
            except BenchFlowError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _register(self, role: Role, session: Session, handlers: SessionHandlers) -> None:
        self._opened += 1
        self._open[role.name] = (role, session)
        session.on_ask_user(handlers.on_ask)
        session.on_step(handlers.on_step)
        # An isinstance check of a protocol costs more than writing an event.
        if hasattr(session, "on_activity"):
            cast("SupportsActivity", session).on_activity(handlers.on_activity)

    async def _close(self, name: str) -> None:
        _, session = self._open.pop(name)
        self._carried.pop(name, None)
        seconds = self._plan.config.deadlines.teardown
        async with within(seconds, "agent", f"ending role {name!r}"):
            await session.aclose()

    def _resume(self, role: Role) -> SessionSnapshot | None:
        carried = self._carried.get(role.name)
        return carried[1] if carried is not None and carried[0] == role else None

    def _next_log_dir(self, role: Role) -> Path | None:
        """Return the log directory for the first session, a folder below it for later ones."""
        if self._log_dir is None:
            return None
        name = re.sub(r"[^A-Za-z0-9_-]", "-", role.name)
        return self._log_dir / f"{self._opened + 1}-{name}" if self._opened else self._log_dir


def call_forks_of(session: Session, role: str) -> SupportsCallForks:
    """Return `session` as one that can be forked at a model call.

    Raises:
        SnapshotError: It cannot.
    """
    if not isinstance(session, SupportsCallForks):
        raise SnapshotError(f"the session of role {role!r} cannot be forked at a model call")
    return session
