"""Tasks of BenchFlow as an OpenEnv server.

`OpenEnvServer` has the application, and `bench tasks serve --protocol openenv` runs it. An
action is OpenEnv's own `call_tool` or `list_tools`, so its generic and its MCP clients work.
"""

# mypy: disable-error-code="import-not-found, misc"
# pyright: basic, reportMissingImports=false

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchflow_contracts import BenchFlowError, Task, UsageError
from benchflow_engine.config import RunConfig
from benchflow_engine.task_formats import runnable_task
from benchflow_tool_sessions import (
    BASE_TOOLS,
    FORK_KEY_HEADER,
    FORK_PATH,
    BlockingSession,
    BlockingSessions,
    ForkReplies,
    NoSessionError,
    SessionLimits,
    ToolResult,
    ToolSpec,
    fork_fault,
    read_fork,
)
from fastapi import Request
from fastapi.responses import JSONResponse
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    RESERVED_TOOL_NAMES,
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import EnvironmentMetadata, Observation, State

_PREFIX = "task_"


class TaskObservation(Observation):
    """The first observation of an episode: the prompt of the task, and its tools."""

    prompt: str = ""
    tools: tuple[Tool, ...] = ()


class BenchFlowEnvironment(Environment):
    """One episode at a time on the tasks of a server.

    `reset` opens a session on the task that `task` names, or that the seed chooses. The reward is
    None until the verdict, and stays None if the episode has no verdict.
    """

    SUPPORTS_CONCURRENT_SESSIONS: bool = True

    def __init__(
        self,
        tasks: Mapping[str, Task],
        sessions: Callable[[], BlockingSessions],
        children: set[str],
    ) -> None:
        super().__init__()
        self._tasks = tasks
        self._sessions = sessions
        self._children = children
        """The rollouts of children of forks that no client has taken."""
        self._session: BlockingSession | None = None
        self._episode: str | None = None
        self._is_done = False

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        rollout: str | None = None,
    ) -> TaskObservation:
        """Begin an episode, and end the one before. `rollout` continues a child of a fork."""
        self.close()
        sessions = self._sessions()
        if rollout is not None:
            session = self._take(sessions, rollout)
        else:
            session = sessions.open(self._choose(task, seed), slot=episode_id)
        self._session = session
        self._episode, self._is_done = episode_id or session.id, False
        return TaskObservation(
            prompt=session.prompt,
            tools=tuple(tool_of(spec) for spec in session.tools()),
            metadata={"task": session.session.task.id, "rollout": session.id},
        )

    def step(
        self, action: CallToolAction | ListToolsAction, timeout_s: float | None = None
    ) -> CallToolObservation | ListToolsObservation:
        """Call a tool, or list the tools."""
        del timeout_s
        session = self._session
        if isinstance(action, ListToolsAction):
            # OpenEnv lists tools before a reset, too.
            specs = BASE_TOOLS if session is None else session.tools()
            return ListToolsObservation(tools=[tool_of(spec) for spec in specs])
        if session is None:
            raise RuntimeError("call reset before step")
        if self._is_done:
            raise RuntimeError("the episode has ended; call reset")
        result = session.call(name_of(action.tool_name), action.arguments)
        observation = CallToolObservation(
            tool_name=action.tool_name, result=result_of(result), done=result.finished
        )
        if result.finished:
            self._is_done = True
            outcome = session.outcome()
            observation.reward = outcome.reward
            observation.metadata = {
                "items": dict(outcome.items),
                "truncated": outcome.truncated,
                "unscored": outcome.unscored,
            }
        return observation

    @property
    def state(self) -> State:
        """The id of the episode, the steps, and the rollout."""
        session = self._session
        if session is None:
            return State(episode_id=None, step_count=0)
        return State(
            episode_id=self._episode,
            step_count=session.session.calls,
            rollout=session.id,
            task=session.session.task.id,
        )

    def get_metadata(self) -> EnvironmentMetadata:
        """Return what the server offers."""
        ids = ", ".join(list(self._tasks)[:20])
        return EnvironmentMetadata(
            name="benchflow", description=f"Tasks of BenchFlow: {ids}", version="0.8.0"
        )

    def list_splits(self) -> list[dict[str, str]]:
        """Return the only split."""
        return [{"name": "test", "type": "test"}]

    def list_tasks(self, split: str) -> list[dict[str, str]]:
        """Return the tasks."""
        del split
        return [{"task": ident} for ident in self._tasks]

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks."""
        return len(self.list_tasks(split))

    def get_task(self, split: str, index: int) -> dict[str, str]:
        """Return one task."""
        return self.list_tasks(split)[index]

    def close(self) -> None:
        """End the episode and delete its sandbox. Idempotent."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _take(self, sessions: BlockingSessions, rollout: str) -> BlockingSession:
        if rollout not in self._children:
            raise NoSessionError(f"no child of a fork has the id {rollout!r:.200}")
        self._children.discard(rollout)
        return sessions.find(rollout)

    def _choose(self, ident: str | None, seed: int | None) -> Task:
        if ident is None:
            return list(self._tasks.values())[(seed or 0) % len(self._tasks)]
        if ident not in self._tasks:
            raise UsageError(f"the server has no task {ident!r:.200}")
        return self._tasks[ident]


def tool_of(spec: ToolSpec) -> Tool:
    """Return a tool as OpenEnv lists it. A name that OpenEnv reserves gets a prefix."""
    name = _PREFIX + spec.name if spec.name in RESERVED_TOOL_NAMES else spec.name
    return Tool(name=name, description=spec.description, input_schema=dict(spec.input_schema))


def name_of(name: str) -> str:
    """Return the name of a tool in its session, from the name that `tool_of` gives."""
    own = name.removeprefix(_PREFIX)
    return own if own in RESERVED_TOOL_NAMES else name


def result_of(result: ToolResult) -> dict[str, Any]:
    """Return a result in the form of an MCP result."""
    return {
        "content": [dict(block) for block in result.blocks],
        "is_error": result.is_error,
        "truncated": result.truncated,
    }


class OpenEnvServer:
    """The application, and the sessions of its episodes. Close it after the server has ended."""

    _default_limits: ClassVar[SessionLimits] = SessionLimits()

    def __init__(
        self,
        tasks: Sequence[str | Path | Task],
        *,
        config: RunConfig | None = None,
        jobs_dir: str | Path | None = None,
        limits: SessionLimits | None = None,
        most: int = 64,
    ) -> None:
        """Read the tasks. Sandboxes start with the first episode.

        Raises:
            UsageError: No task is given.
            BenchFlowError: A task is malformed.
        """
        self._config = config or RunConfig()
        options = self._config.adapter_options()
        loaded = [t if isinstance(t, Task) else runnable_task(t, options) for t in tasks]
        if not loaded:
            raise UsageError("an OpenEnv server needs a task")
        self._tasks = {task.id: task for task in loaded}
        self._jobs_dir = None if jobs_dir is None else Path(jobs_dir)
        self._limits = limits or self._default_limits
        self._most = most
        self._sessions: BlockingSessions | None = None
        self._children: set[str] = set()
        self._forks = ForkReplies()
        self.app = create_fastapi_app(
            self._environment,
            CallToolAction,
            CallToolObservation,
            max_concurrent_envs=most,
            env_name="benchflow",
            reset_observation_cls=TaskObservation,
        )
        self.app.add_api_route(FORK_PATH, self._fork, methods=["POST"])

    def start(self) -> None:
        """Start the sandbox provider now, and not with the first episode.

        Raises:
            SandboxError: It does not start.
        """
        self._opened()

    def close(self) -> None:
        """End all episodes. Idempotent."""
        if self._sessions is not None:
            self._sessions.close()

    def _environment(self) -> BenchFlowEnvironment:
        return BenchFlowEnvironment(self._tasks, self._opened, self._children)

    async def _fork(self, request: Request) -> JSONResponse:
        """Fork the episode whose `rollout` the body names. It is not of OpenEnv."""
        try:
            n, body = read_fork(await request.body())
            key, rollout = request.headers.get(FORK_KEY_HEADER), str(body.get("rollout"))
            children = await self._forks.reply(
                key, rollout, n, lambda: asyncio.to_thread(self._fork_now, rollout, n)
            )
        except BenchFlowError as error:
            status, fault = fork_fault(error)
            return JSONResponse(fault, status)
        return JSONResponse({"rollouts": children})

    def _fork_now(self, rollout: str, n: int) -> list[str]:
        sessions = self._opened()
        children = sessions.fork(rollout, n)
        # A child that no client took in time has ended. Another thread may add children meanwhile.
        known = self._children.copy()
        self._children.difference_update(known - sessions.ids())
        self._children.update(children)
        return children

    def _opened(self) -> BlockingSessions:
        if self._sessions is None:
            self._sessions = BlockingSessions(
                self._config, jobs_dir=self._jobs_dir, limits=self._limits, most=self._most
            )
        return self._sessions
