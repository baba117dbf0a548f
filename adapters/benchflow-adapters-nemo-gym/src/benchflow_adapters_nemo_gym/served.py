"""The servers of `bench tasks serve`, and the files that NeMo Gym needs to use them."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from benchflow_contracts import UsageError
from benchflow_engine.planes import open_provider
from benchflow_tool_sessions import BaseTaskServer, SessionManager, TaskServerSettings
from litestar.types import ASGIApp

from .agent_server import create_agent_app
from .resources_server import create_resources_app
from .rows import make_config, make_row, task_rows, write_project


class ResourcesTaskServer(BaseTaskServer):
    """A resources server: an agent of NeMo Gym acts. Its requests have no token."""

    port = 8791
    token_header = None

    @asynccontextmanager
    async def open_app(self, settings: TaskServerSettings) -> AsyncGenerator[ASGIApp]:
        """Yield the application. Its cookies are valid until the process ends.

        Raises:
            SandboxError: The sandbox provider does not start.
        """
        async with _running(settings) as manager:
            yield create_resources_app(manager, settings.tasks, secret=secrets.token_bytes(32))

    async def write_client_files(
        self, settings: TaskServerSettings, url: str, directory: Path
    ) -> Sequence[Path]:
        """Write a project of NeMo Gym. Each task is started once, for its tools.

        Raises:
            BenchFlowError: A task does not start.
        """
        async with _running(settings) as manager:
            rows = await task_rows(manager, settings.tasks)
        return await asyncio.to_thread(_write, directory, rows, make_config(url))


class AgentTaskServer(BaseTaskServer):
    """An agent server: our agent plays a row. The requests have no token."""

    port = 8792
    most = 4
    token_header = None
    runs_agents = True

    @asynccontextmanager
    async def open_app(self, settings: TaskServerSettings) -> AsyncGenerator[ASGIApp]:
        """Yield the application.

        Raises:
            UsageError: The configuration forks rollouts.
            SandboxError: The sandbox provider does not start.
        """
        jobs_dir = settings.jobs_dir
        if jobs_dir is None:
            raise UsageError("an agent server needs a directory of jobs")
        async with open_provider(settings.config) as provider:
            yield create_agent_app(
                settings.tasks,
                settings.config,
                jobs_dir=jobs_dir,
                slots=settings.most,
                provider=provider,
            )

    async def write_client_files(
        self, settings: TaskServerSettings, url: str, directory: Path
    ) -> Sequence[Path]:
        """Write a project of NeMo Gym, whose rows have no tools."""
        rows = [make_row(task, ()) for task in settings.tasks]
        return await asyncio.to_thread(_write, directory, rows, make_config(url, agent_url=url))


def _running(settings: TaskServerSettings) -> AbstractAsyncContextManager[SessionManager]:
    return SessionManager.running(
        settings.config,
        jobs_dir=settings.jobs_dir,
        limits=settings.limits,
        most=settings.most,
        idle_sec=settings.idle_sec,
    )


def _write(
    directory: Path, rows: Iterable[dict[str, Any]], config: Mapping[str, Any]
) -> Sequence[Path]:
    write_project(directory, rows, config)
    return (directory / "rows.jsonl", directory / "benchflow.yaml")
