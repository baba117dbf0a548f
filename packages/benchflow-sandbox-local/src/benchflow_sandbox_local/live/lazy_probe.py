"""Probing sandboxes that run before all their memory is there: a program compares its memory."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec

from benchflow_sandbox_local.sandbox import LocalSandbox

from .fork_probe import LostInForkError
from .lazy import LazyRestorePolicy

_PROGRAM_FILE = Path(__file__).parents[1] / "in_sandbox" / "lazy_probe_program.py"
_PATIENCE = 120.0
_MEGABYTES = 32
_DEPTH = 2


class Maker(Protocol):
    """What the probe needs of a manager."""

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Start a sandbox, from the spec or from a snapshot."""
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot."""
        ...


async def probe_lazy(maker: Maker, laziness: LazyRestorePolicy, spec: SandboxSpec) -> None:
    """Fork a program lazily, and the child once more; return when nothing was lost.

    Raises:
        LostInForkError: A page was wrong, or children do not come before their memory.
        SandboxError: It could not be found out.
    """
    try:
        async with asyncio.timeout(_PATIENCE), AsyncExitStack() as stack:
            await _run(maker, laziness, spec, stack)
    except TimeoutError as error:
        raise SandboxTimeoutError(f"the lazy probe took over {_PATIENCE:.0f} s") from error


async def _run(
    maker: Maker, laziness: LazyRestorePolicy, spec: SandboxSpec, stack: AsyncExitStack
) -> None:
    sandbox = await maker.create(spec, None, {})
    stack.push_async_callback(sandbox.teardown)
    source = _PROGRAM_FILE.read_text(encoding="utf-8")
    program: Process = await sandbox.spawn(["python3", "-I", "-c", source, str(_MEGABYTES)])
    await _answer(program)
    for _ in range(_DEPTH):
        image = await sandbox.snapshot("live")
        stack.push_async_callback(maker.discard, image)
        with laziness.trial(image):
            sandbox = await maker.create(spec, image, {})
        stack.push_async_callback(sandbox.teardown)
        if not sandbox.came_lazily:
            raise LostInForkError("sandboxes do not come back before their memory")
        program = await sandbox.attach(program.id)
        await program.stdin.write(b"look\n")
        if wrong := await _answer(program):
            raise LostInForkError(
                f"a sandbox that runs before its memory is there loses pages: {wrong}"
            )


async def _answer(program: Process) -> object:
    said = b""
    while not said.endswith(b"\n"):
        data = await program.stdout.read()
        if not data:
            complaint = (await program.stderr.read())[-500:].decode(errors="replace")
            raise SandboxError(f"the lazy probe's program ended: {complaint}")
        said += data
    answer: object = json.loads(said)
    return answer
