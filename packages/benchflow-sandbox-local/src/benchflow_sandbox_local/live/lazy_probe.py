"""Probe lazy restores: a program compares its memory while the pager still loads it."""

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


class LocalCreator(Protocol):
    """The part of a manager that the probe needs."""

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> LocalSandbox:
        """Start a sandbox, from the spec or from a snapshot."""
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot."""
        ...


async def probe_lazy(
    creator: LocalCreator, lazy_policy: LazyRestorePolicy, spec: SandboxSpec
) -> None:
    """Fork a program lazily, and fork its child again; return when nothing was lost.

    Raises:
        LostInForkError: A page was wrong, or a restore was not lazy.
        SandboxError: The probe failed.
    """
    try:
        async with asyncio.timeout(_PATIENCE), AsyncExitStack() as stack:
            await _run(creator, lazy_policy, spec, stack)
    except TimeoutError as error:
        raise SandboxTimeoutError(f"the lazy probe took over {_PATIENCE:.0f} s") from error


async def _run(
    creator: LocalCreator, lazy_policy: LazyRestorePolicy, spec: SandboxSpec, stack: AsyncExitStack
) -> None:
    sandbox = await creator.create(spec, None, {})
    stack.push_async_callback(sandbox.teardown)
    source = _PROGRAM_FILE.read_text(encoding="utf-8")
    program: Process = await sandbox.spawn(["python3", "-I", "-c", source, str(_MEGABYTES)])
    await _answer(program)
    for _ in range(_DEPTH):
        image = await sandbox.snapshot("live")
        stack.push_async_callback(creator.discard, image)
        with lazy_policy.trial(image):
            sandbox = await creator.create(spec, image, {})
        stack.push_async_callback(sandbox.teardown)
        if not sandbox.is_lazy:
            raise LostInForkError("the engine did not restore a sandbox lazily")
        program = await sandbox.attach(program.id)
        await program.stdin.write(b"look\n")
        if wrong := await _answer(program):
            raise LostInForkError(f"a lazily restored sandbox loses pages of memory: {wrong}")


async def _answer(program: Process) -> object:
    line = b""
    while not line.endswith(b"\n"):
        data = await program.stdout.read()
        if not data:
            output = (await program.stderr.read())[-500:].decode(errors="replace")
            raise SandboxError(f"the lazy probe's program ended: {output}")
        line += data
    answer: object = json.loads(line)
    return answer
