"""Fork kernel objects live, and find out what has become of each."""

import asyncio
import json
from collections.abc import Container, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from benchflow_contracts import Model
from benchflow_contracts.errors import BenchFlowError, SnapshotError
from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import Sandbox, SandboxImage, SandboxSpec
from benchflow_sandbox_local import LocalProvider

PROGRAM = Path(__file__).with_name("in_sandbox")
START = "import sys; sys.path.insert(0, '/opt/hazards'); from in_sandbox.server import main; main()"
PATIENCE = 120.0

Verdict = Literal["carried", "refused", "lost", "absent"]
"""`absent`: a process of a box cannot build it, so there is nothing to lose."""


class Outcome(Model):
    """What became of one object, and the message or the reason."""

    verdict: Verdict
    reason: str = ""


class RefusedError(Exception):
    """A fork that failed openly."""

    def __init__(self, error: BenchFlowError, where: str) -> None:
        super().__init__(f"{where}{error}")


class Program:
    """The host's side of one process that has objects."""

    def __init__(self, process: Process) -> None:
        self.process = process

    async def ask(self, **request: object) -> dict[str, str]:
        """Send a request; return what is wrong, by object."""
        await self.process.stdin.write(json.dumps(request).encode() + b"\n")
        line = b""
        async with asyncio.timeout(PATIENCE):
            while not line.endswith(b"\n"):
                data = await self.process.stdout.read()
                assert data, (await self.process.stderr.read()).decode(errors="replace")
                line += data
        found: dict[str, str] = json.loads(line)
        return found


async def fork_objects(
    provider: LocalProvider, names: Sequence[str], changing: Container[str] = ()
) -> dict[str, Outcome]:
    """Return what became of each object.

    All are forked together; when that fails, or loses something that is not `changing`, each half
    is forked alone.
    """
    try:
        found = await _fork(provider, names)
    except RefusedError as refusal:
        if len(names) == 1:
            return {names[0]: Outcome(verdict="refused", reason=str(refusal))}
    else:
        lost = [name for name in names if found[name].verdict == "lost"]
        if all(name in changing for name in lost):
            return found
        if len(names) == 1:
            return await _unless_without_fork(provider, names[0], found)
    half = len(names) // 2
    first = await fork_objects(provider, names[:half], changing)
    return first | await fork_objects(provider, names[half:], changing)


async def _unless_without_fork(
    provider: LocalProvider, name: str, found: dict[str, Outcome]
) -> dict[str, Outcome]:
    """Return what was found, unless the object is not as on Linux without any fork, too."""
    async with AsyncExitStack() as stack:
        parent, _ = await _build(await _create(provider, stack, None), [name])
        broken = await parent.ask(check=True)
    if name not in broken:
        return found
    return {name: Outcome(verdict="absent", reason=f"not as on Linux: {broken[name]}")}


async def _build(sandbox: Sandbox, names: Sequence[str]) -> tuple[Program, dict[str, str]]:
    """Build objects in a box; return the program that has them, and what cannot be built."""
    await sandbox.upload(PROGRAM, "/opt/hazards/in_sandbox")
    program = Program(await sandbox.spawn(["python3", "-I", "-c", START, "/tmp/held"], user="root"))
    return program, await program.ask(build=list(names))


async def _fork(provider: LocalProvider, names: Sequence[str]) -> dict[str, Outcome]:
    """Fork a box, and its child; check the objects in all three."""
    async with AsyncExitStack() as stack:
        sandbox = await _create(provider, stack, None)
        parent, absent = await _build(sandbox, names)
        outcomes = {
            name: Outcome(verdict="absent", reason=absent[name])
            if name in absent
            else Outcome(verdict="carried")
            for name in names
        }
        try:
            image = await _snapshot(provider, stack, sandbox, "")
            child = await _child(provider, stack, image, "its children fail: ")
            deeper = await _snapshot(provider, stack, child, "in a child: ")
            grandchild = await _child(provider, stack, deeper, "two forks deep, children fail: ")
        except RefusedError as refusal:
            # What is refused must be as it was.
            if broken := await parent.ask(check=True):
                return outcomes | _lost(broken, f"in the parent ({refusal})")
            raise
        places = {"in the parent": parent}
        places["in a child"] = Program(await child.attach(parent.process.id))
        places["two forks deep"] = Program(await grandchild.attach(parent.process.id))
        for place, program in places.items():
            broken = await program.ask(check=True)
            new = {name: why for name, why in broken.items() if outcomes[name].verdict != "lost"}
            outcomes |= _lost(new, place)
        return outcomes


def _lost(broken: dict[str, str], place: str) -> dict[str, Outcome]:
    return {name: Outcome(verdict="lost", reason=f"{place}: {why}") for name, why in broken.items()}


async def _create(
    provider: LocalProvider, stack: AsyncExitStack, image: SandboxImage | None
) -> Sandbox:
    sandbox = await provider.create(SandboxSpec(), image=image)
    stack.push_async_callback(sandbox.teardown)
    return sandbox


async def _snapshot(
    provider: LocalProvider, stack: AsyncExitStack, sandbox: Sandbox, where: str
) -> SandboxImage:
    try:
        image = await sandbox.snapshot("live")
    except SnapshotError as error:
        raise RefusedError(error, where) from error
    stack.push_async_callback(provider.discard, image)
    return image


async def _child(
    provider: LocalProvider, stack: AsyncExitStack, image: SandboxImage, where: str
) -> Sandbox:
    try:
        return await _create(provider, stack, image)
    except BenchFlowError as error:
        raise RefusedError(error, where) from error
