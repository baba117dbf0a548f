"""The proof that a live snapshot of a cloud has the memory of a process."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from benchflow_contracts.errors import BenchFlowError, SandboxError
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SnapshotLevel

from .sandbox import RemoteSandbox

OpenSandbox = Callable[[SandboxImage | None], Awaitable[RemoteSandbox]]
Discard = Callable[[SandboxImage], Awaitable[None]]
"""Creates a sandbox, or the sandbox of a snapshot."""
_SECONDS = 300.0
_SCRIPT = 'read -r kept; echo ready; read -r name; echo "$kept $name"'


async def prove_live(open_sandbox: OpenSandbox, discard: Discard) -> str | None:
    """Return why a live snapshot does not work; `None`: a process continued from its memory.

    Both the sandbox and the one of its snapshot must continue. `discard` deletes the snapshot.

    Raises:
        SandboxError: The cloud did not create a sandbox, and may do so later.
    """
    try:
        async with asyncio.timeout(_SECONDS), AsyncExitStack() as stack:
            try:
                sandbox = await open_sandbox(None)
            except SandboxError as error:
                if error.retryable:
                    raise
                return str(error)
            stack.push_async_callback(sandbox.teardown)
            try:
                return await _prove(sandbox, open_sandbox, discard, stack)
            except BenchFlowError as error:
                return str(error)
    except TimeoutError:
        return f"a live snapshot and its sandbox took more than {_SECONDS:g} s"


async def _prove(
    sandbox: RemoteSandbox,
    open_sandbox: OpenSandbox,
    discard: Discard,
    stack: AsyncExitStack,
) -> str | None:
    process, secret = await sandbox.spawn(["/bin/sh", "-c", _SCRIPT]), secrets.token_hex(8)
    await process.stdin.write(f"{secret}\n".encode())
    if (line := await _line(process)) != "ready":
        return f"a process wrote {line!r} before the snapshot"
    image = await sandbox.snapshot("live")
    stack.push_async_callback(discard, image)
    copy = await open_sandbox(image)
    stack.push_async_callback(copy.teardown)
    for name, each in (("copy", await copy.attach(process.id)), ("original", process)):
        await each.stdin.write(f"{name}\n".encode())
        if (line := await _line(each)) != f"{secret} {name}":
            return f"the process in the {name} wrote {line!r} after a live snapshot"
    return None


async def _line(process: Process) -> str:
    data = bytearray()
    while not data.endswith(b"\n") and (piece := await process.stdout.read(1)):
        data += piece
    return data.decode(errors="replace").strip()


def with_live(can: SandboxCapabilities, engine: str, reason: str | None) -> SandboxCapabilities:
    """Return capabilities with live snapshots of `engine`, or with the `reason` in their note."""
    if reason is not None:
        note = f"{can.notes['live']} ({reason})" if "live" in can.notes else reason
        return can.model_copy(update={"notes": {**can.notes, "live": note}})
    notes = {name: note for name, note in can.notes.items() if name != "live"}
    levels = frozenset[SnapshotLevel]({*can.snapshot_levels, "live"})
    return can.model_copy(update={"snapshot_levels": levels, "live_engine": engine, "notes": notes})
