"""Children of one pending question: nothing that one hears is anywhere in another."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from benchflow_agent_acp import AcpAgent, shipped_declaration
from benchflow_agent_acp.code_words import SandboxedSession, expect_words, tell_word
from benchflow_agent_acp.declaration import ASK_SWITCH
from benchflow_agent_acp.question_probe import QuestionProbe
from benchflow_contracts import Door, Endpoint, Role, SandboxImage, SandboxSpec, SessionState
from benchflow_sandbox_local import LocalProvider, LocalSandbox
from scripted_llm import AnswersProbes, ScriptedLlm

pytestmark = [pytest.mark.agents, pytest.mark.timeout(600)]

WORD = re.compile(rb"word-[0-9a-f]{8}")
ROWS = """
import sqlite3, sys
with sqlite3.connect("words.db") as database:
    database.execute("CREATE TABLE IF NOT EXISTS words (word)")
    database.executemany("INSERT INTO words VALUES (?)", [sys.argv[1:]])
"""


def words_in_memory(init: int) -> set[str]:
    """Return every word in the writable memory of the processes below `init`."""
    found: set[bytes] = set()
    pending = [init]
    while pending:
        process = Path(f"/proc/{pending.pop()}")
        with suppress(FileNotFoundError, ProcessLookupError):
            children = process / "task" / process.name / "children"
            pending += map(int, children.read_text().split())
            with (process / "mem").open("rb", buffering=0) as memory:
                for line in (process / "maps").read_text().splitlines():
                    where, rights = line.split()[:2]
                    if rights.startswith("rw"):
                        start, end = (int(part, 16) for part in where.split("-"))
                        memory.seek(start)
                        with suppress(OSError):  # a guard page, or one of a device
                            found |= set(WORD.findall(memory.read(end - start)))
    return {word.decode() for word in found}


def words_in_files(init: int) -> set[str]:
    """Return every word in the files that a box has written, databases included."""
    found: set[bytes] = set()
    for place in ("home", "workspace", "tmp", "root"):
        for path in Path(f"/proc/{init}/root/{place}").rglob("*"):
            if path.is_file() and not path.is_symlink():
                found |= set(WORD.findall(path.read_bytes()))
    return {word.decode() for word in found}


class World:
    """One agent with a question, and the ways into its children."""

    def __init__(self, agent: AcpAgent, provider: LocalProvider, spec: SandboxSpec) -> None:
        self.asking = QuestionProbe(agent.decl)
        self._agent, self._provider, self._spec = agent, provider, spec
        self._role = Role(
            model="mock-model", env={ASK_SWITCH: "1"}, timeout_sec=300, idle_timeout_sec=200
        )

    @asynccontextmanager
    async def parent(self) -> AsyncGenerator[SandboxedSession]:
        async with self._box(None) as box:
            yield SandboxedSession(box, await self._agent.connect(box, self._role))

    @asynccontextmanager
    async def child(
        self, carry: SessionState, image: SandboxImage
    ) -> AsyncGenerator[SandboxedSession]:
        async with self._box(image) as box:
            yield SandboxedSession(box, await self._agent.attach(box, self._role, carry))

    @asynccontextmanager
    async def _box(self, image: SandboxImage | None) -> AsyncGenerator[LocalSandbox]:
        box = await self._provider.create(self._spec, image=image)
        try:
            yield box
        finally:
            await box.teardown()

    async def fork(self, parent: SandboxedSession) -> tuple[SessionState, SandboxImage]:
        async with parent.sandbox.freeze():
            return await parent.session.capture(), await parent.sandbox.snapshot("live")


async def learn(place: SandboxedSession) -> str:
    """Tell a place a word of its own, also as a row; return it."""
    word = await tell_word(place.session)
    stored = await place.sandbox.exec(["python3", "-I", "-c", ROWS, word])
    assert stored.ok, stored.stderr
    return word


async def run(world: World) -> None:
    async with AsyncExitStack() as stack:
        parent = await stack.enter_async_context(world.parent())
        past = await learn(parent)
        forks: list[tuple[SessionState, SandboxImage]] = []

        async def fork() -> None:
            forks.append(await world.fork(parent))

        ask = await world.asking.run(parent, 0, meanwhile=fork)
        assert world.asking.answer_count(ask) == 3
        [(carry, image)] = forks
        places = [parent]
        for _ in range(3):
            places.append(await stack.enter_async_context(world.child(carry, image)))
        async with asyncio.TaskGroup() as group:
            for number, child in enumerate(places[1:]):
                group.create_task(world.asking.answer(child, ask, number))
        own = [await learn(place) for place in places]
        for place, word in zip(places, own, strict=True):
            await expect_words(place.session, place.sandbox.id, {past, word})
            assert isinstance(place.sandbox, LocalSandbox)
            init = place.sandbox.running.pid
            assert words_in_memory(init) == {past, word}
            assert words_in_files(init) == {past, word}


@pytest.mark.parametrize("name", ["claude-agent-acp", "codex-acp"])
def test_three_children_with_three_answers_hold_nothing_of_each_other(name: str) -> None:
    async def main(llm: ScriptedLlm) -> None:
        agent = AcpAgent(shipped_declaration(name))
        url = llm.url if agent.decl.model.wire == "anthropic" else f"{llm.url}/v1"
        bundles = (await agent.needs(Role())).bundles
        endpoint = Endpoint(url=url)
        spec = SandboxSpec(bundles=bundles, network="model-only", doors=(Door.to(endpoint),))
        async with LocalProvider() as provider:
            await run(World(agent, provider, spec))

    with ScriptedLlm(AnswersProbes("benchflow-probe.txt", "benchflow\n")) as llm:
        asyncio.run(main(llm))
