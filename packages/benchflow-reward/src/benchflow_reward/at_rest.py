"""A sandbox in which nothing runs while it is read."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from benchflow_contracts import Sandbox, SandboxUnsupportedError, SupportsKillAll


@asynccontextmanager
async def at_rest(sandbox: Sandbox) -> AsyncGenerator[None]:
    """Freeze the sandbox for the block; where that is not possible, kill its processes first.

    Raises:
        SandboxUnsupportedError: The sandbox can do neither.
    """
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(sandbox.freeze())
        except SandboxUnsupportedError:
            if not isinstance(sandbox, SupportsKillAll):
                raise
            await sandbox.kill_all()
        yield
