"""Forking one agent for real: the runs behind a declaration's `[proven]`."""

import asyncio
import shlex
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from benchflow_contracts import (
    AgentError,
    Role,
    Sandbox,
    SandboxImage,
    SandboxProvider,
    SandboxSpec,
    Session,
    SessionCarry,
    SessionSnapshot,
    SnapshotError,
)

from .agent import AcpAgent
from .code_words import Branch, Place, diverge, expect_words, tell
from .declaration import ASK_SWITCH
from .probe_asks import Asking
from .render import Values, render

_PAUSES_SEC = (0.2, 1.0, 3.0)
"""Between the attempts at a live fork that may succeed later."""

_COPY = """
umask 077
while test $# -gt 0; do
    if test -e "$1"; then
        mkdir -p -- "$(dirname -- "$2")" && cp -a -- "$1" "$2" || exit 1
    fi
    shift 2
done
"""


class ForkProbe:
    """Each method is a fact: it returns, or raises why not.

    Every branch is told a code word of its own and asked for all that it knows, so a
    word that it cannot know is a leak, whatever the agent announces.
    """

    def __init__(
        self,
        agent: AcpAgent,
        provider: SandboxProvider,
        spec: SandboxSpec,
        role: Role,
        *,
        briefing: tuple[Path, str] | None = None,
    ) -> None:
        self._agent = agent
        self._provider = provider
        self._spec = spec
        self._role = role
        self._briefing = briefing
        """A file that each new box needs, and where."""

    async def state(self) -> None:
        """New processes, in boxes with the same files, go on from a saved session.

        Where the declaration says that plain copies of the files are enough, copies
        at other paths of one box must not know of each other either.
        """
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new())
            past = await tell(parent.session)
            async with parent.box.freeze():
                snapshot = await parent.session.snapshot()
                image = await self._image(stack, parent.box)
            branches: list[tuple[str, Branch]] = [
                (f"the {number} box", partial(self._resumed, image, snapshot))
                for number in ("first", "second")
            ]
            if self._agent.decl.session.snapshot == "files":
                for number in ("first", "second"):
                    home = await self._copy_home(parent.box, snapshot, number)
                    moved = partial(self._moved, parent.box, snapshot, home)
                    branches.append((f"the {number} copied home", moved))
            words = await diverge(parent.session, branches, past)
            await parent.session.aclose()
            async with self._session(parent.box, self._role, snapshot) as again:
                await expect_words(again, "the parent, loaded again,", words)

    async def live(self) -> None:
        """Copies of the process go on at a turn boundary, each on its own."""
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new())
            past = await tell(parent.session)
            carry, image = await self._fork(stack, parent)
            branches: list[tuple[str, Branch]] = [
                (f"the {number} live child", partial(self._carried, image, carry))
                for number in ("first", "second")
            ]
            await diverge(parent.session, branches, past)

    async def live_ask(self) -> None:
        """Copies of the process that waits for an answer each get one of their own."""
        asking = Asking(self._agent.decl)
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new(asks=True))
            past = await tell(parent.session)
            forks: list[tuple[SessionCarry, SandboxImage]] = []

            async def fork() -> None:
                forks.append(await self._fork(stack, parent))

            ask = await asking.run(parent, 0, meanwhile=fork)

            @asynccontextmanager
            async def answered(number: int) -> AsyncGenerator[Place]:
                carry, image = forks[0]
                async with self._carried(image, carry) as child:
                    await asking.proceed(child, ask, number)
                    yield child

            branches: list[tuple[str, Branch]] = [
                (f"the child with answer {number}", partial(answered, number))
                for number in range(asking.answers(ask))
            ]
            await diverge(parent.session, branches, past)

    async def replay_ask(self) -> None:
        """The prompt that led to a question leads there again, from before the prompt."""
        asking = Asking(self._agent.decl)
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new(asks=True))
            snapshot: SessionSnapshot | None = None
            if self._agent.decl.session.snapshot != "none":
                await tell(parent.session)
                snapshot = await parent.session.snapshot()
            async with parent.box.freeze():
                image = await self._image(stack, parent.box)
            ask = await asking.run(parent, 0)
            for number in range(asking.answers(ask)):
                async with self._resumed(image, snapshot, asks=True) as child:
                    again = await asking.run(child, number)
                    if not asking.same(ask, again):
                        raise AgentError("the same prompt led to another question")

    async def _fork(
        self, stack: AsyncExitStack, parent: Place
    ) -> tuple[SessionCarry, SandboxImage]:
        carries: list[SessionCarry] = []

        async def carry() -> None:
            carries.append(await parent.session.carry())

        for pause in (*_PAUSES_SEC, None):
            try:
                image = await parent.box.snapshot("live", during=carry)
                stack.push_async_callback(self._provider.discard, image)
                return carries[-1], image
            except SnapshotError as error:
                if not error.retryable or pause is None:
                    raise
                # The agent is at work on something that ends by itself.
                await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _image(self, stack: AsyncExitStack, box: Sandbox) -> SandboxImage:
        image = await box.snapshot()
        stack.push_async_callback(self._provider.discard, image)
        return image

    @asynccontextmanager
    async def _box(self, image: SandboxImage | None = None) -> AsyncGenerator[Sandbox]:
        labels = {"benchflow.probe": self._agent.name}
        box = await self._provider.create(self._spec, image=image, labels=labels)
        try:
            if image is None and self._briefing is not None:
                await box.upload(*self._briefing)
            yield box
        finally:
            await box.teardown()

    @asynccontextmanager
    async def _session(
        self, box: Sandbox, role: Role, resume: SessionSnapshot | None = None
    ) -> AsyncGenerator[Session]:
        session = await self._agent.connect(box, role, resume=resume)
        try:
            yield session
        finally:
            await session.aclose()

    def _asked(self, asks: bool) -> Role:
        env = {**self._role.env, ASK_SWITCH: "1"} if asks else self._role.env
        return self._role.model_copy(update={"env": env})

    @asynccontextmanager
    async def _new(self, *, asks: bool = False) -> AsyncGenerator[Place]:
        async with self._box() as box, self._session(box, self._asked(asks)) as session:
            yield Place(box, session)

    @asynccontextmanager
    async def _resumed(
        self, image: SandboxImage, snapshot: SessionSnapshot | None, *, asks: bool = False
    ) -> AsyncGenerator[Place]:
        role = self._asked(asks)
        async with self._box(image) as box, self._session(box, role, snapshot) as session:
            yield Place(box, session)

    @asynccontextmanager
    async def _carried(self, image: SandboxImage, carry: SessionCarry) -> AsyncGenerator[Place]:
        async with self._box(image) as box:
            session = await self._agent.attach(box, self._role, carry)
            try:
                yield Place(box, session)
            finally:
                await session.aclose()

    @asynccontextmanager
    async def _moved(
        self, box: Sandbox, snapshot: SessionSnapshot, home: str
    ) -> AsyncGenerator[Place]:
        role = self._role.model_copy(update={"env": {**self._role.env, "HOME": home}})
        async with self._session(box, role, snapshot) as session:
            yield Place(box, session)

    async def _copy_home(self, box: Sandbox, snapshot: SessionSnapshot, number: str) -> str:
        """Copy the session's files to where another HOME would have them."""
        home = (await box.exec(["sh", "-c", "cd && pwd"])).stdout.strip()
        copy = f"{home}-{number}"
        made = await box.exec(f"install -d -o {shlex.quote(self._spec.user)} {copy}", user="root")
        values = Values(base_url=None, api_key="none", model=None, home=copy, workdir=snapshot.cwd)
        targets = [render(path, values) for path in self._agent.decl.session.paths]
        pairs = [path for pair in zip(snapshot.files, targets, strict=True) for path in pair]
        done = await box.exec(["sh", "-c", _COPY, "sh", *pairs])
        if not (made.ok and done.ok):
            raise AgentError(f"cannot copy the session files: {made.stderr}{done.stderr:.300}")
        return copy
