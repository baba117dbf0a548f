"""The entry point `ors` of `benchflow.task_servers`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from benchflow_engine.planes import open_provider
from benchflow_tool_sessions import BaseTaskServer, TaskServerSettings
from litestar.types import ASGIApp

from .server import DefaultEnvironment, OrsServerSettings, ServedEnvironment, create_app
from .wire import API_KEY_HEADER


class OrsTaskServer(BaseTaskServer):
    """Each set of tasks is an environment. The client acts."""

    port = 8645
    token_header = API_KEY_HEADER
    public_paths = ("/health",)

    @asynccontextmanager
    async def open_app(self, settings: TaskServerSettings) -> AsyncGenerator[ASGIApp]:
        """Yield the application.

        Raises:
            UsageError: A set has a name that an environment cannot have.
            SandboxError: The sandbox provider does not start.
        """
        ors = OrsServerSettings(
            tuple(ServedEnvironment(each.name.lower(), each.tasks) for each in settings.task_sets),
            settings.config,
            allowed_hosts=settings.hosts,
            jobs_dir=settings.jobs_dir,
            limits=settings.limits,
            most=settings.most,
            idle_sec=settings.idle_sec,
        )
        async with open_provider(settings.config) as provider:
            yield DefaultEnvironment(create_app(ors, provider=provider))
