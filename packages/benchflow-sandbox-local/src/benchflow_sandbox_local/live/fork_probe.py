"""Probing live forks: a real fork, two levels deep.

Capturing and restoring processes depends on the kernel, on the engine and on how both were
built, and what fails does so silently more often than not. So a program that holds one of each
thing that matters is forked. Its children are forked again, one that the dump keeps and one
that it ends. Each of them must find all that it held, and nothing of its siblings.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError, SandboxUnsupportedError
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import Sandbox, SandboxImage, SandboxSpec

from benchflow_sandbox_local.launcher_process.layers.inode_pins import MOST_ENTRIES

_PROGRAM_FILE = Path(__file__).parents[1] / "in_sandbox" / "fork_probe_program.py"
_PATIENCE = 120.0
_MAX_LINE = 1 << 16


class Maker(Protocol):
    """What the probe needs of a provider: creating and discarding."""

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> Sandbox:
        """Start a sandbox, from the spec or from a snapshot."""
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Forget a snapshot."""
        ...


class LostInForkError(SandboxUnsupportedError):
    """Live forks lose something on this machine. A retry does not help."""


async def probe_live(
    maker: Maker, spec: SandboxSpec, *, without: frozenset[str] = frozenset()
) -> None:
    """Fork a program twice and return when nothing was lost.

    `spec` must give a root that has Python 3.9 with sqlite3. `without` names what the
    program shall not hold, since the engine refuses it openly.

    Raises:
        LostInForkError: A part was lost, or leaked between siblings. A retry does not help.
        SandboxError: The probe failed: no Python, a timeout, or a failed fork.
    """
    try:
        async with asyncio.timeout(_PATIENCE), AsyncExitStack() as stack:
            await _Probe(maker, spec, stack, without).run()
    except TimeoutError as error:
        raise SandboxTimeoutError(f"the live probe took over {_PATIENCE:.0f} s") from error


class _ProbeProgram:
    """The host's side of the probe program."""

    def __init__(self, process: Process, buffered: bytes = b"") -> None:
        self.process = process
        self._buffered = buffered

    async def line(self) -> dict[str, Any]:
        """Return its next answer."""
        while b"\n" not in self._buffered:
            data = await self.process.stdout.read()
            if not data or len(self._buffered) > _MAX_LINE:
                complaint = await self.process.stderr.read() if not data else b""
                raise SandboxError(
                    f"the live probe's program ended: {complaint[-500:].decode(errors='replace')}"
                )
            self._buffered += data
        line, _, self._buffered = self._buffered.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def fill(self) -> None:
        """Let it make so many files that a dump ends its sandbox."""
        await self.process.stdin.write(f"many {MOST_ENTRIES + 1}\n".encode())
        await self.line()

    async def look(self, where: str, notes: list[str]) -> None:
        """Let it check what it holds; raise `LostInForkError` unless all of it is there.

        The last of `notes` is new; the others it must know, and no further ones.
        """
        await self.process.stdin.write(f"{notes[-1]}\n".encode())
        answer = await self.line()
        lost = [f"{name} ({what})" for name, what in answer["lost"].items()]
        if answer["notes"] != notes:
            lost.append(f"memory ({answer['notes']} instead of {notes})")
        if answer["files"] != sorted(notes):
            lost.append(f"files ({answer['files']} instead of {sorted(notes)})")
        if lost:
            raise LostInForkError(f"a live fork loses, {where}: {'; '.join(lost)}")
        if answer["failed"]:
            raise SandboxError(f"the live probe failed, {where}: {answer['failed']}")


@dataclass(frozen=True, slots=True)
class _Child:
    sandbox: Sandbox
    program: _ProbeProgram


class _Probe:
    def __init__(
        self, maker: Maker, spec: SandboxSpec, stack: AsyncExitStack, without: frozenset[str]
    ) -> None:
        self._without = sorted(without)
        self._maker = maker
        self._spec = spec
        self._stack = stack

    async def run(self) -> None:
        parent = await self._create(None)
        port = self._spec.doors[0].port if self._spec.doors else 0
        source = _PROGRAM_FILE.read_text(encoding="utf-8")
        command = ["python3", "-I", "-c", source, "probe", str(port), *self._without]
        program = _ProbeProgram(await parent.spawn(command))
        await program.line()
        await program.look("before any fork", ["origin"])
        image = await self._fork(parent)
        first = await self._child(image, program)
        second = await self._child(image, program)
        await program.look("in the parent", ["origin", "parent"])
        await first.program.look("in a child", ["origin", "first"])
        await second.program.look("in a second child", ["origin", "second"])
        await second.program.fill()
        for child, name in ((first, "first"), (second, "second")):
            deeper = await self._child(await self._fork(child.sandbox), child.program)
            await deeper.program.look("two forks deep", ["origin", name, "deeper"])
            await child.program.look("in a child that was forked", ["origin", name, "again"])

    async def _create(self, image: SandboxImage | None) -> Sandbox:
        sandbox = await self._maker.create(self._spec, image, {})
        self._stack.push_async_callback(sandbox.teardown)
        return sandbox

    async def _fork(self, sandbox: Sandbox) -> SandboxImage:
        image = await sandbox.snapshot("live")
        self._stack.push_async_callback(self._maker.discard, image)
        return image

    async def _child(self, image: SandboxImage, program: _ProbeProgram) -> _Child:
        sandbox = await self._create(image)
        return _Child(sandbox, _ProbeProgram(await sandbox.attach(program.process.id)))
