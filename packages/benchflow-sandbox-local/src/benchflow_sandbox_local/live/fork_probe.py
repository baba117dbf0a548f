"""Probe live forks by a real fork, two levels deep.

Whether a live fork works depends on the kernel, on the engine and on how both were built. Most
failures are silent. So the probe forks a program with one object of each important kind. It forks
two children again: the dump of the first leaves it running, the dump of the second terminates it.
Each process must find all of its objects, and nothing of its siblings.
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

from benchflow_sandbox_local.launcher_process.layers.inode_pins import MAX_COPIED_ENTRIES

_PROGRAM_FILE = Path(__file__).parents[1] / "in_sandbox" / "fork_probe_program.py"
_PATIENCE = 120.0
_MAX_LINE = 1 << 16


class SandboxCreator(Protocol):
    """The part of a manager that the probe needs."""

    async def create(
        self, spec: SandboxSpec, image: SandboxImage | None, labels: Mapping[str, str]
    ) -> Sandbox:
        """Start a sandbox, from the spec or from a snapshot."""
        ...

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot."""
        ...


class LostInForkError(SandboxUnsupportedError):
    """Live forks lose something on this machine. A retry does not help."""


async def probe_live(
    creator: SandboxCreator, spec: SandboxSpec, *, without: frozenset[str] = frozenset()
) -> None:
    """Fork a program, and fork its children; return when nothing was lost.

    `spec` must name a root that has Python 3.9 or newer with sqlite3. `without` lists the objects
    that the program does not create, because the engine refuses to dump them.

    Raises:
        LostInForkError: An object was lost, or leaked between siblings. A retry does not help.
        SandboxError: The probe failed: no Python, a timeout, or a failed fork.
    """
    try:
        async with asyncio.timeout(_PATIENCE), AsyncExitStack() as stack:
            await _Probe(creator, spec, stack, without).run()
    except TimeoutError as error:
        raise SandboxTimeoutError(f"the live probe took over {_PATIENCE:.0f} s") from error


class _ProbeProgram:
    """The host's side of the probe program."""

    def __init__(self, process: Process, buffered: bytes = b"") -> None:
        self.process = process
        self._buffered = buffered

    async def line(self) -> dict[str, Any]:
        """Return the next answer of the program."""
        while b"\n" not in self._buffered:
            data = await self.process.stdout.read()
            if not data or len(self._buffered) > _MAX_LINE:
                output = await self.process.stderr.read() if not data else b""
                raise SandboxError(
                    f"the live probe's program ended: {output[-500:].decode(errors='replace')}"
                )
            self._buffered += data
        line, _, self._buffered = self._buffered.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def fill(self) -> None:
        """Create so many files in the sandbox that a dump terminates it."""
        await self.process.stdin.write(f"many {MAX_COPIED_ENTRIES + 1}\n".encode())
        await self.line()

    async def look(self, where: str, notes: list[str]) -> None:
        """Let the program check its objects; raise `LostInForkError` if one is lost.

        The last note is new. The program must have all earlier notes, and no others.
        """
        await self.process.stdin.write(f"{notes[-1]}\n".encode())
        answer = await self.line()
        lost = [f"{name} ({reason})" for name, reason in answer["lost"].items()]
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
        self,
        creator: SandboxCreator,
        spec: SandboxSpec,
        stack: AsyncExitStack,
        without: frozenset[str],
    ) -> None:
        self._without = sorted(without)
        self._creator = creator
        self._spec = spec
        self._stack = stack

    async def run(self) -> None:
        parent = await self._create(None)
        port = self._spec.served_doors[0].port if self._spec.served_doors else 0
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
        sandbox = await self._creator.create(self._spec, image, {})
        self._stack.push_async_callback(sandbox.teardown)
        return sandbox

    async def _fork(self, sandbox: Sandbox) -> SandboxImage:
        image = await sandbox.snapshot("live")
        self._stack.push_async_callback(self._creator.discard, image)
        return image

    async def _child(self, image: SandboxImage, program: _ProbeProgram) -> _Child:
        sandbox = await self._create(image)
        return _Child(sandbox, _ProbeProgram(await sandbox.attach(program.process.id)))
