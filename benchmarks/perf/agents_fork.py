"""What a live fork of a real agent costs while it waits for an answer.

The agents are installed as a rollout installs them and act through a scripted model, in boxes
without a network. `frozen` is the longest gap that a process of the box saw: from the freeze
until it ran again. A child is there when its box runs and its session is attached; then it gets
an answer of its own, which must arrive, and its memory is read.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchflow_agent_acp import AcpAgent, shipped_declaration
from benchflow_agent_acp.code_words import SandboxedSession
from benchflow_agent_acp.declaration import ASK_SWITCH
from benchflow_agent_acp.question_probe import QuestionProbe
from benchflow_contracts import (
    Ask,
    Door,
    Endpoint,
    Process,
    Role,
    SandboxImage,
    SandboxSpec,
    SessionState,
    SnapshotError,
)
from benchflow_sandbox_local import LocalProvider
from memory import own_memory
from report import emit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))
from scripted_llm import AnswersProbes, ScriptedLlm

FORKS, CHILDREN, PARALLEL = 6, 4, 4
"""The first fork and its children warm the machine and are not counted."""

LIMITS = {
    "zed-codex-acp": (70, 50),
    "mistral-vibe": (140, 90),
    "codex-acp": (160, 70),
    "claude-agent-acp": (250, 150),
    "opencode": (None, None),
    "qwen": (None, None),
}
"""Milliseconds: frozen, and each child."""

WATCH = """
import os, select, time
last, gap = time.time(), 0.0
while True:
    asked = select.select([0], [], [], 0.0005)[0]
    now = time.time(); gap = max(gap, now - last); last = now
    if asked:
        if not os.read(0, 1): break
        os.write(1, b"%f\\n" % (gap * 1000)); gap = 0.0
"""


@dataclass
class Samples:
    """Milliseconds, and megabytes where said so."""

    frozen: list[float] = field(default_factory=list)
    fork: list[float] = field(default_factory=list)
    serial: list[float] = field(default_factory=list)
    parallel: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    image_mb: int = 0


async def gap_of(watcher: Process) -> float:
    """Return the longest gap since the last call, in milliseconds."""
    await watcher.stdin.write(b"?")
    answer = b""
    while not answer.endswith(b"\n"):
        answer += await watcher.stdout.read()
    return float(answer)


class Bench:
    """Forks one agent at its question, again and again."""

    def __init__(
        self, agent: AcpAgent, provider: LocalProvider, spec: SandboxSpec, role: Role
    ) -> None:
        self._agent = agent
        self._provider = provider
        self._spec = spec
        self._role = role
        self._asking = QuestionProbe(agent.decl)
        self.samples = Samples()

    async def run(self) -> None:
        """Let the agent ask; fork it while it waits; answer."""
        box = await self._provider.create(self._spec)
        try:
            watcher = await box.spawn(["python3", "-I", "-S", "-c", WATCH])
            session = await self._agent.connect(box, self._role)
            parent = SandboxedSession(box, session)
            images: list[tuple[SessionState, SandboxImage]] = []

            async def measure() -> None:
                for _ in range(FORKS):
                    images.append(await self._fork(parent, watcher))
                    await self._children(*images[-1])
                    if len(images) > 1:
                        await self._provider.discard(images.pop(0)[1])

            await self._asking.run(parent, 0, meanwhile=measure)
            await self._provider.discard(images.pop()[1])
            await session.aclose()
        finally:
            await box.teardown()

    async def _fork(
        self, parent: SandboxedSession, watcher: Process
    ) -> tuple[SessionState, SandboxImage]:
        carries: list[SessionState] = []

        async def carry() -> None:
            carries.append(await parent.session.capture())

        while True:
            await gap_of(watcher)
            started = time.perf_counter()
            try:
                image = await parent.sandbox.snapshot("live", while_frozen=carry)
            except SnapshotError as error:
                if not error.retryable:
                    raise
                # It is at work on something that ends by itself.
                await asyncio.sleep(0.5)
                continue
            self.samples.fork.append((time.perf_counter() - started) * 1000)
            self.samples.frozen.append(await gap_of(watcher))
            self.samples.image_mb = image.bytes >> 20
            return carries[-1], image

    async def _children(self, carry: SessionState, image: SandboxImage) -> None:
        for number in range(CHILDREN):
            started = time.perf_counter()
            async with self._child(carry, image) as child:
                self.samples.serial.append((time.perf_counter() - started) * 1000)
                await self._answer(child, carry.ask, number)
                self.samples.memory_mb.append(own_memory(child.sandbox.running.pid))
        ready = asyncio.Barrier(PARALLEL)
        started = time.perf_counter()

        async def one(number: int) -> None:
            async with self._child(carry, image) as child:
                await ready.wait()
                if number == 0:
                    took = (time.perf_counter() - started) * 1000
                    self.samples.parallel.append(took / PARALLEL)
                await self._answer(child, carry.ask, number)

        async with asyncio.TaskGroup() as group:
            for number in range(PARALLEL):
                group.create_task(one(number))

    async def _answer(self, child: SandboxedSession, ask: Ask | None, number: int) -> None:
        assert ask is not None
        await self._asking.answer(child, ask, number % self._asking.answer_count(ask))

    @asynccontextmanager
    async def _child(
        self, carry: SessionState, image: SandboxImage
    ) -> AsyncGenerator[SandboxedSession]:
        box = await self._provider.create(self._spec, image=image)
        try:
            session = await self._agent.attach(box, self._role, carry)
            yield SandboxedSession(box, session)
            await session.aclose()
        finally:
            await box.teardown()


def report(name: str, samples: Samples) -> None:
    """Print what was measured, without the first fork."""
    frozen, child = LIMITS[name]
    bench, counted = f"agents_fork/{name}", slice(CHILDREN, None)
    emit(f"{bench}/frozen", samples.frozen[1:], limit=frozen, image_mb=samples.image_mb)
    emit(f"{bench}/fork", samples.fork[1:])
    emit(f"{bench}/child_serial", samples.serial[counted], limit=child)
    emit(f"{bench}/child_x{PARALLEL}", samples.parallel[1:], limit=child)
    emit(f"{bench}/child_pss", samples.memory_mb[counted], unit="MB")


async def measure(name: str) -> None:
    """Measure one agent."""
    agent = AcpAgent(shipped_declaration(name))
    role = Role(model="mock-model", env={ASK_SWITCH: "1"}, timeout_sec=120, idle_timeout_sec=60)
    with ScriptedLlm(AnswersProbes("benchflow-probe.txt", "benchflow\n")) as llm:
        # What the wire's vendor calls its base URL has a version in it, or has not.
        url = llm.url if agent.decl.model.wire == "anthropic" else f"{llm.url}/v1"
        bundles = (await agent.needs(role)).bundles
        spec = SandboxSpec(
            bundles=bundles, network="model-only", doors=(Door.to(Endpoint(url=url)),)
        )
        async with LocalProvider() as provider:
            await provider.capabilities()  # as a rollout does: large children come lazily then
            bench = Bench(agent, provider, spec, role)
            await bench.run()
    report(name, bench.samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agent", action="append", choices=[*LIMITS])
    for agent in parser.parse_args().agent or [*LIMITS]:
        asyncio.run(measure(agent))
