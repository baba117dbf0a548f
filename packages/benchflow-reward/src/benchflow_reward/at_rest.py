"""Stop all processes of a sandbox while its files are read."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from benchflow_contracts import Sandbox, SandboxUnsupportedError, SupportsKillAll


@asynccontextmanager
async def at_rest(sandbox: Sandbox, *, may_kill: bool) -> AsyncGenerator[None]:
    """Freeze the sandbox for the block, or kill its processes first if it cannot be frozen.

    With `may_kill` false, the processes are needed later, such as services of a next step.

    Raises:
        SandboxUnsupportedError: The sandbox cannot be frozen, and its processes cannot or may
            not be killed.
    """
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(sandbox.freeze())
        except SandboxUnsupportedError:
            if not (may_kill and isinstance(sandbox, SupportsKillAll)):
                raise
            await sandbox.kill_all()
        yield
