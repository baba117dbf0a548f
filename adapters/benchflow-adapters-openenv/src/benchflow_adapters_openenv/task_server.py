"""The entry point `openenv` of `benchflow.task_servers`, which also loads without OpenEnv."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from benchflow_contracts import UsageError
from benchflow_tool_sessions import BaseTaskServer, TaskServerSettings


class OpenEnvTaskServer(BaseTaskServer):
    """All tasks are one environment, of which `reset` chooses a task. The client acts."""

    port = 8000
    public_paths = ("/health",)

    @asynccontextmanager
    async def open_app(self, settings: TaskServerSettings) -> AsyncGenerator[Any]:
        """Yield the application.

        Raises:
            UsageError: OpenEnv is not installed.
            SandboxError: The sandbox provider does not start.
        """
        try:
            from .server import OpenEnvServer  # noqa: PLC0415 - it needs an extra
        except ModuleNotFoundError as error:
            raise UsageError(
                f"the server needs the package {error.name!r}",
                hint="install the extra: pip install 'benchflow[openenv]'",
            ) from error
        server = OpenEnvServer(
            settings.tasks,
            config=settings.config,
            jobs_dir=settings.jobs_dir,
            limits=settings.limits,
            most=settings.most,
        )
        await asyncio.to_thread(server.start)
        try:
            yield cast("Any", server).app
        finally:
            await asyncio.to_thread(server.close)
