# mypy: disable-error-code="import-not-found,misc,no-any-unimported,untyped-decorator,unused-ignore"
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
"""BenchFlow's tasks as a taskset of verifiers 0.4 whose model acts by tools.

A session of BenchFlow runs in verifiers' process, so any harness of verifiers that calls tools can
play it, without a container. An id of verifiers is one module, so write a module that exports
`ToolTaskset`, and name this module.
"""

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import verifiers.v1 as vf
from benchflow_contracts import RewardError, TaskError
from benchflow_engine.flags import run_config
from benchflow_engine.task_formats import runnable_task, runnable_tasks
from benchflow_tool_sessions import BlockingSessions
from pydantic import Field

from .session_relay import SessionRelay

__all__ = ["ToolTaskset"]

_CALL_SEC = 3600.0
"""The session limits its calls itself."""


class ToolState(vf.State):
    """How the tool server reaches the session, and the verdict at the end."""

    url: str = ""
    secret: str = ""
    reward: float | None = None
    items: dict[str, float] = Field(default_factory=dict)
    unscored: str | None = None


class SessionTools(vf.Toolset[vf.ToolsetConfig, ToolState]):
    """The tools of every session."""

    TOOL_PREFIX = None

    @vf.tool
    async def bash(self, command: str, timeout: float | None = None) -> str:
        """Run a command by bash in the sandbox."""
        limit = {} if timeout is None else {"timeout": timeout}
        return await self._call("bash", command=command, **limit)

    @vf.tool
    async def read_file(self, path: str) -> str:
        """Return the text of a file in the sandbox."""
        return await self._call("read_file", path=path)

    @vf.tool
    async def write_file(self, path: str, content: str) -> str:
        """Write a text file in the sandbox."""
        return await self._call("write_file", path=path, content=content)

    @vf.tool
    async def submit(self, message: str = "") -> str:
        """End the work. The result is graded, and no further call is possible."""
        return await self._call("submit", message=message)

    async def _call(self, name: str, **arguments: object) -> str:
        async with httpx.AsyncClient(timeout=_CALL_SEC, trust_env=False) as client:
            answer = await client.post(
                self.state.url,
                json={"name": name, "arguments": arguments},
                headers={"Authorization": f"Bearer {self.state.secret}"},
            )
        found: dict[str, Any] = answer.json()
        if found["failed"]:
            raise ValueError(found["text"])
        return str(found["text"])


class ToolTaskConfig(vf.TaskConfig):
    """Where sessions run."""

    sandbox: str = "local"
    """The sandbox provider."""
    jobs_dir: Path | None = None
    """The directory of the records."""


class ToolData(vf.TaskData):
    """The data of one task."""

    directory: str
    """The directory of the task."""
    digest: str
    """The digest of its files."""


class ToolTask(vf.Task[ToolData, ToolState, ToolTaskConfig]):
    """One task. BenchFlow grades it; an episode without a verdict fails, and has no reward."""

    @classmethod
    def toolsets(cls, config: ToolTaskConfig) -> list[vf.Toolset]:  # noqa: ARG003 - of the base
        """Return the tools."""
        return [SessionTools(vf.ToolsetConfig())]

    @property
    def key(self) -> str:
        """The id of the task."""
        return str(self.data.id)

    async def setup(self, trace: vf.Trace, runtime: vf.Runtime) -> None:  # noqa: ARG002 - of the base
        """Open the session.

        Raises:
            TaskError: The task has changed, or has tools of its own.
        """
        task = runnable_task(self.data.directory)
        if task.digest != self.data.digest:
            raise TaskError(f"the files of task {task.id!r} have changed", hint="load it again")
        relay = _relay(self.config.sandbox, self.config.jobs_dir)
        secret, session = await asyncio.to_thread(relay.open, task)
        trace.state.url, trace.state.secret = relay.url, secret
        own = {"bash", "read_file", "write_file", "submit"}
        others = {tool.name for tool in await asyncio.to_thread(session.tools)} - own
        if others:
            await self._finish(trace)
            raise TaskError(
                f"task {task.id!r} has tools of its own: {', '.join(sorted(others))}",
                hint="serve it by `bench serve`, or by another protocol",
            )

    async def finalize(self, trace: vf.Trace, runtime: vf.Runtime) -> None:  # noqa: ARG002 - of the base
        """Submit if the model did not, and take the verdict."""
        await self._finish(trace)

    @vf.reward
    async def reward(self, trace: vf.Trace) -> float:
        """Return the verdict.

        Raises:
            RewardError: There is none, which is not a reward of 0.
        """
        if trace.state.reward is None:
            raise RewardError(f"the session has no reward: {trace.state.unscored}")
        return float(trace.state.reward)

    async def _finish(self, trace: vf.Trace) -> None:
        relay, secret = _relay(self.config.sandbox, self.config.jobs_dir), trace.state.secret
        outcome = await asyncio.to_thread(relay.finish, secret, str(trace.last_reply or ""))
        # The secret is of no use now, and the state is recorded.
        trace.state.url = trace.state.secret = ""
        trace.state.reward, trace.state.unscored = outcome.reward, outcome.unscored
        trace.state.items = dict(outcome.items)


class ToolTasksetConfig(vf.TasksetConfig):
    """Which tasks."""

    directory: Path | None = None
    """A directory of tasks, in any format that BenchFlow reads. It has a default, because the
    command line of verifiers 0.4.0 refuses a taskset with a required setting."""
    task: ToolTaskConfig = ToolTaskConfig()


class ToolTaskset(vf.Taskset[ToolTask, ToolTasksetConfig]):
    """The tasks of a directory, by id. Tasks that cannot run are left out."""

    def load(self) -> Iterator[ToolTask]:
        """Yield the tasks.

        Raises:
            TaskError: No directory is given.
        """
        if self.config.directory is None:
            raise TaskError(
                "the taskset has no directory of tasks", hint="give --env.taskset.directory"
            )
        found = runnable_tasks(str(self.config.directory)).tasks
        for task in sorted(found, key=lambda each: each.id):
            data = ToolData(
                id=task.id,
                name=task.id,
                prompt=task.instruction,
                directory=str(task.path),
                digest=task.digest,
            )
            yield ToolTask(data, self.config.task)


@cache
def _relay(sandbox: str, jobs_dir: Path | None) -> SessionRelay:
    config = run_config(None, sandbox=sandbox)
    return SessionRelay(BlockingSessions(config, jobs_dir=jobs_dir))


if __name__ == "__main__":
    SessionTools.run()
