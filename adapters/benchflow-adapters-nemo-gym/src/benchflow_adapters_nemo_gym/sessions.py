"""The sessions of a resources server: where they run, who may use them, how they ended."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from benchflow_contracts import RolloutIdentity, Task, UsageError
from benchflow_tool_sessions import (
    ForkRefusedError,
    ForkReplies,
    NoSessionError,
    Outcome,
    SessionEndedError,
    SessionManager,
    ToolResult,
    ToolSession,
)
from litestar.datastructures import Cookie
from litestar.exceptions import HTTPException, PermissionDeniedException

from .broker import SandboxBroker
from .descriptor import (
    MCP_TOKEN_HEADER,
    McpAccess,
    SandboxReference,
    SessionDescriptor,
    SessionSigner,
    Topology,
)
from .hostile_json import as_object
from .lent_actions import ActionResult
from .server_parts import TaskIndex

RESERVED_NAMES: Final = frozenset(
    {"verify", "seed_session", "close_session", "aggregate_metrics", "reverify_mode", "mcp", ""}
)
"""Routes of a resources server. A tool cannot have one of these names."""
_MOST_PROMPTS: Final = 100
_MOST_ENDED: Final = 4096


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a session that is closed."""

    task: str
    outcome: Outcome


class VerdictLog:
    """The last verdicts by rollout: a client that lost a response asks again."""

    def __init__(self, most: int = _MOST_ENDED) -> None:
        self._most = most
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()

    def find(self, rollout: str) -> Verdict | None:
        """Return the verdict of a rollout, if it is among the last ones."""
        return self._verdicts.get(rollout)

    def add(self, rollout: str, verdict: Verdict) -> Verdict:
        """Add a verdict without its whole record, and return it. The first one counts."""
        light = replace(verdict, outcome=replace(verdict.outcome, result=None))
        kept = self._verdicts.setdefault(rollout, light)
        while len(self._verdicts) > self._most:
            self._verdicts.popitem(last=False)
        return kept


@dataclass(slots=True)
class Episode:
    """A session that an environment server of NeMo Gym named."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    request: Mapping[str, Any] | None = None
    rollout: str | None = None
    reply: Mapping[str, Any] | None = None
    is_closed: bool = False


class EpisodeLog:
    """The last episodes by the id that the caller chose, also those that are closed."""

    def __init__(self, most: int = _MOST_ENDED) -> None:
        self._most = most
        self._episodes: OrderedDict[str, Episode] = OrderedDict()

    def get(self, name: str) -> Episode:
        """Return the episode of this name; a new one at its first use."""
        episode = self._episodes.setdefault(name, Episode())
        while len(self._episodes) > self._most:
            self._episodes.popitem(last=False)
        return episode


@dataclass(frozen=True, slots=True)
class ResourcesServer:
    """What the routes need: the sessions, the tasks by id, and the signer of names."""

    manager: SessionManager
    tasks: TaskIndex
    signer: SessionSigner
    name: str
    topology: Topology
    provider_config: str
    broker: SandboxBroker = field(default_factory=lambda: SandboxBroker(None))
    verdicts: VerdictLog = field(default_factory=VerdictLog)
    episodes: EpisodeLog = field(default_factory=EpisodeLog)
    forks: ForkReplies = field(default_factory=ForkReplies)

    @property
    def cookie(self) -> str:
        """The name of the cookie. Two servers behind one agent have different ones."""
        return f"BenchFlow___{self.name}"

    def make_cookie(self, value: str) -> Cookie:
        """Return the cookie of a signed name."""
        return Cookie(self.cookie, value=value, httponly=True, samesite="lax")

    def cookie_of(self, rollout: str) -> Cookie:
        """Return the cookie of a session."""
        return self.make_cookie(self.signer.sign(rollout, "cookie"))

    async def open(self, task: Task, *, slot: str | None = None) -> ToolSession:
        """Start a session, and lend its sandbox if the topology says so.

        Raises:
            UsageError: The task has a tool with the name of a route.
        """
        session = await self.manager.open(task, slot=slot)
        names = [tool.name for tool in await session.tools()]
        if clash := sorted(RESERVED_NAMES.intersection(names)):
            await self.manager.close(session.id)
            raise UsageError(f"the task has tools with names of routes: {clash}")
        if self.topology in {"agent-in-env", "whole-interaction"}:
            self._lend(session)
        return session

    def descriptor_of(self, session: ToolSession, base_url: str) -> SessionDescriptor:
        """Return the descriptor of a session, with the parts that the topology has."""
        token = self.signer.sign(session.id, "mcp")
        spec, reference = None, None
        for ref in self.broker.refs_of(session.id):
            lent = self.broker.describe(ref)
            spec = self.broker.spec_of(ref)
            reference = SandboxReference(
                broker=f"{base_url.rstrip('/')}/sandboxes",
                ref=ref,
                sandbox=lent.sandbox,
                workdir=lent.workdir,
                token=self.signer.sign(session.id, "broker"),
            )
        return SessionDescriptor.place(
            self.topology,
            RolloutIdentity(rollout=session.id, task=session.task.id),
            spec=spec,
            ref=reference,
            mcp=McpAccess(server_name=self.name, headers={MCP_TOKEN_HEADER: token}),
        )

    async def fork(self, session: ToolSession, n: int) -> list[ToolSession]:
        """Fork a session into `n` sessions. After that, the session does not exist.

        Raises:
            ForkRefusedError: An agent runs in the sandbox, or as `SessionManager.fork`.
        """
        if self.topology in {"agent-in-env", "whole-interaction"}:
            raise ForkRefusedError(
                f"in the topology {self.topology!r} an outer program acts in the sandbox",
                hint="fork sessions of the topology 'env-sandboxed'",
            )
        return await self.manager.fork(session.id, n)

    def child_reply(self, session: ToolSession, base_url: str) -> dict[str, Any]:
        """Return the access to a child of a fork: its cookie, and its reply as of a seed."""
        cookie = self.cookie_of(session.id)
        reply = self.descriptor_of(session, base_url).seed_reply(self.provider_config)
        return {"cookies": {cookie.key: cookie.value}, **reply}

    def _lend(self, session: ToolSession) -> None:
        def count_use() -> None:
            # The session may have ended: then its end recalls the sandbox.
            with suppress(NoSessionError):
                self.manager.find(session.id).keep_open()

        sandbox = session.lend_sandbox(lambda: self.broker.recall(session.id))
        identity = RolloutIdentity(rollout=session.id, task=session.task.id)
        self.broker.lend(sandbox, identity, count_use, _StepRecord(session))

    def rollout_of(self, signed: str | None, use: Literal["cookie", "mcp"]) -> str:
        """Return the rollout that a cookie or an MCP token names.

        Raises:
            NoSessionError: It is missing or forged.
        """
        rollout = self.signer.read(signed or "", use)
        if rollout is None:
            raise NoSessionError(
                f"the request has no valid {use} of a session",
                hint="call /seed_session first, and send back what it returns",
            )
        return rollout

    def session_of(self, signed: str | None, use: Literal["cookie", "mcp"]) -> ToolSession:
        """Return the session of a cookie or an MCP token.

        Raises:
            NoSessionError: It is missing or forged, or its session is gone.
            SessionEndedError: The session was verified.
        """
        rollout = self.rollout_of(signed, use)
        if self.verdicts.find(rollout) is not None:
            raise SessionEndedError("the session has ended: it was verified")
        return self.manager.find(rollout)

    def session_with_tools(self, signed: str | None, use: Literal["cookie", "mcp"]) -> ToolSession:
        """Return the session of a cookie or an MCP token, for a call of a tool.

        Raises:
            NoSessionError: As `session_of`.
            SessionEndedError: As `session_of`.
            PermissionDeniedException: The topology has no tools outside the sandbox.
        """
        session = self.session_of(signed, use)
        if self.topology in {"none", "whole-interaction"}:
            raise PermissionDeniedException(f"the topology {self.topology!r} has no tools here")
        return session

    async def verify(self, rollout: str, task: Task, message: str) -> Outcome:
        """Submit and grade; return the outcome. A second call returns the same one.

        The session is closed then, so that it does not count as an open one.

        Raises:
            UsageError: The session is of another task.
        """
        verdict = self.verdicts.find(rollout)
        if verdict is None:
            session = self.manager.find(rollout)
            if task is not session.task:
                raise UsageError("the row is of another task than the session")
            outcome = await _submit_to_the_end(session, message)
            verdict = self.verdicts.add(rollout, Verdict(task.id, outcome))
            await self.close(rollout)
        if verdict.task != task.id:
            raise UsageError("the row is of another task than the session")
        return verdict.outcome

    async def close(self, rollout: str) -> None:
        """End a session without a verdict, unless it has one. Idempotent."""
        self.broker.recall(rollout)
        await self.manager.close(rollout)

    async def seed_episode(self, row: Mapping[str, Any], base_url: str) -> Episode:
        """Open the session of an episode, or return the one that an earlier request opened.

        Raises:
            HTTPException: The episode is closed, or had another request.
        """
        name = _episode_name(row)
        task_data = as_object(row.get("task_data"))
        task = self.tasks.find(task_data.get("verifier_metadata"))
        episode = self.episodes.get(name)
        async with episode.lock:
            if episode.is_closed:
                raise HTTPException(status_code=409, detail=f"the session {name!r} is closed")
            if episode.request is not None and episode.request != row:
                raise HTTPException(
                    status_code=409, detail=f"the session {name!r} had another request"
                )
            if episode.reply is None:
                slot = str(as_object(row.get("episode_id")).get("rollout_id") or name)
                session = await self.open(task, slot=slot)
                described = self.descriptor_of(session, base_url)
                episode.request, episode.rollout = dict(row), session.id
                episode.reply = described.episode_reply(name, self.provider_config)
        return episode

    async def close_episode(self, row: Mapping[str, Any]) -> str:
        """Close the session of an episode, and refuse a seed of it that comes later. Idempotent."""
        name = _episode_name(row)
        episode = self.episodes.get(name)
        async with episode.lock:
            given = as_object(row.get("episode_id"))
            if episode.request is not None and episode.request.get("episode_id") != given:
                raise HTTPException(
                    status_code=409, detail=f"the session {name!r} is of another episode"
                )
            episode.is_closed = True
            if episode.rollout is not None:
                await self.close(episode.rollout)
        return name


class _StepRecord:
    """Records what is done in the lent sandbox of a session as steps."""

    def __init__(self, session: ToolSession) -> None:
        self._session = session

    def begin(self, name: str, arguments: Mapping[str, Any]) -> Callable[[ActionResult], None]:
        action = self._session.begin_action(name, arguments)

        def end(result: ActionResult) -> None:
            code = result.exit_code
            self._session.end_action(
                action,
                ToolResult(
                    result.text,
                    is_error=result.is_error,
                    truncated=result.is_cut,
                    data=None if code is None else {"exit_code": code},
                ),
            )

        return end


def _episode_name(row: Mapping[str, Any]) -> str:
    name = row.get("resources_session_id")
    if not isinstance(name, str) or not name:
        raise UsageError(f"resources_session_id is not a text: {name!r:.200}")
    return name


async def _submit_to_the_end(session: ToolSession, message: str) -> Outcome:
    """Submit until the task has no further prompt: nobody is there to answer one."""
    for _ in range(_MOST_PROMPTS):
        try:
            outcome = await session.submit(message)
        except SessionEndedError:
            return await session.outcome()
        if outcome is not None:
            return outcome
        message = ""
    raise UsageError(f"task {session.task.id!r} has more than {_MOST_PROMPTS} prompts")
