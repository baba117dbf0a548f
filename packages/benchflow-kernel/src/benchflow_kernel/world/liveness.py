"""Notice during a turn that the sandbox does not answer any more."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from benchflow_contracts import Sandbox, SandboxError, SandboxLostError
from benchflow_contracts.pausing import pause_switch

EVERY_SEC = 30.0
"""Seconds between two probes."""
ANSWER_SEC = 120.0
"""The time for the command of a probe. A busy machine needs long."""


@asynccontextmanager
async def watch_sandbox(
    sandbox: Sandbox, on_lost: Callable[[SandboxLostError], None]
) -> AsyncGenerator[None]:
    """Probe a sandbox inside the block; call `on_lost` once if its provider says that it is lost.

    A probe runs one command as root. A slow, failed or killed command proves nothing, because an
    agent could cause it, and would get rid of a bad score. Only the provider can tell: it has a
    process inside that the agent does not reach.
    """
    probing = asyncio.get_running_loop().create_task(_probe(sandbox, on_lost))
    try:
        yield
    finally:
        probing.cancel()
        await asyncio.wait([probing])


async def _probe(sandbox: Sandbox, on_lost: Callable[[SandboxLostError], None]) -> None:
    while True:
        await asyncio.sleep(EVERY_SEC)
        await pause_switch().wait_running()
        try:
            await sandbox.exec(["true"], user="root", cwd="/", timeout=ANSWER_SEC)
        except SandboxLostError as error:
            on_lost(error)
            return
        except SandboxError:
            continue
