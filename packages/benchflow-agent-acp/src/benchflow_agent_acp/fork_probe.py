"""Fork one agent for real, as evidence for a declaration's `[proven]` tables."""

import asyncio
import shlex
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from benchflow_contracts import (
    AgentError,
    Role,
    RolloutIdentity,
    Sandbox,
    SandboxImage,
    SandboxProvider,
    SandboxSpec,
    Session,
    SessionSnapshot,
    SessionState,
    SnapshotError,
)

from .agent import AcpAgent
from .code_words import OpenBranch, SandboxedSession, check_isolation, expect_words, tell_word
from .declaration import ASK_SWITCH
from .question_probe import QuestionProbe
from .render import Values, render

_PAUSES_SEC = (0.2, 1.0, 3.0)
"""Pauses between attempts at a live fork, which may succeed later."""

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
    """Each public method checks one fidelity; it raises if the agent fails.

    Each branch gets its own code word and is asked for all words that it knows. A word of another
    branch is a leak, whatever the agent announces.
    """

    def __init__(
        self,
        agent: AcpAgent,
        provider: SandboxProvider,
        spec: SandboxSpec,
        role: Role,
        *,
        script: tuple[Path, str] | None = None,
    ) -> None:
        self._agent = agent
        self._provider = provider
        self._spec = spec
        self._role = role
        self._script = script
        """A file that each new sandbox needs, and its path inside the sandbox."""

    async def state(self) -> None:
        """Resume a saved session in new processes, in sandboxes with copies of the files.

        If the declaration says that plain copies of the files are enough, copies at other paths
        of one sandbox must not know of each other either.
        """
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new())
            past = await tell_word(parent.session)
            async with parent.sandbox.freeze():
                snapshot = await parent.session.snapshot()
                image = await self._image(stack, parent.sandbox)
            branches: list[tuple[str, OpenBranch]] = [
                (f"the {number} sandbox", partial(self._resumed, image, snapshot))
                for number in ("first", "second")
            ]
            if self._agent.decl.session.snapshot == "files":
                for number in ("first", "second"):
                    home = await self._copy_home(parent.sandbox, snapshot, number)
                    relocated = partial(self._relocated, parent.sandbox, snapshot, home)
                    branches.append((f"the {number} copied home", relocated))
            words = await check_isolation(parent.session, branches, past)
            await parent.session.aclose()
            async with self._session(parent.sandbox, self._role, snapshot) as again:
                await expect_words(again, "the parent, loaded again,", words)

    async def live(self) -> None:
        """Continue with copies of the process at a turn boundary."""
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new())
            past = await tell_word(parent.session)
            state, image = await self._fork(stack, parent)
            branches: list[tuple[str, OpenBranch]] = [
                (f"the {number} live child", partial(self._forked, image, state))
                for number in ("first", "second")
            ]
            await check_isolation(parent.session, branches, past)

    async def live_ask(self) -> None:
        """Give each copy of a process that waits for an answer its own answer."""
        probe = QuestionProbe(self._agent.decl)
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new(asks=True))
            past = await tell_word(parent.session)
            forks: list[tuple[SessionState, SandboxImage]] = []

            async def fork() -> None:
                forks.append(await self._fork(stack, parent))

            ask = await probe.run(parent, 0, meanwhile=fork)

            @asynccontextmanager
            async def answer_child(number: int) -> AsyncGenerator[SandboxedSession]:
                state, image = forks[0]
                async with self._forked(image, state) as child:
                    await probe.answer(child, ask, number)
                    yield child

            branches: list[tuple[str, OpenBranch]] = [
                (f"the child with answer {number}", partial(answer_child, number))
                for number in range(probe.answer_count(ask))
            ]
            await check_isolation(parent.session, branches, past)

    async def replay_ask(self) -> None:
        """Repeat the prompt that led to a question; the same question must follow."""
        probe = QuestionProbe(self._agent.decl)
        async with AsyncExitStack() as stack:
            parent = await stack.enter_async_context(self._new(asks=True))
            snapshot: SessionSnapshot | None = None
            if self._agent.decl.session.snapshot != "none":
                await tell_word(parent.session)
                snapshot = await parent.session.snapshot()
            async with parent.sandbox.freeze():
                image = await self._image(stack, parent.sandbox)
            ask = await probe.run(parent, 0)
            for number in range(probe.answer_count(ask)):
                async with self._resumed(image, snapshot, asks=True) as child:
                    again = await probe.run(child, number)
                    if not probe.is_same(ask, again):
                        raise AgentError("the same prompt led to another question")

    async def _fork(
        self, stack: AsyncExitStack, parent: SandboxedSession
    ) -> tuple[SessionState, SandboxImage]:
        states: list[SessionState] = []

        async def capture() -> None:
            states.append(await parent.session.capture())

        for pause in (*_PAUSES_SEC, None):
            try:
                image = await parent.sandbox.snapshot("live", while_frozen=capture)
                stack.push_async_callback(self._provider.discard, image)
                return states[-1], image
            except SnapshotError as error:
                if not error.retryable or pause is None:
                    raise
                # The agent is busy, for example with a tool call that ends by itself.
                await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _image(self, stack: AsyncExitStack, sandbox: Sandbox) -> SandboxImage:
        image = await sandbox.snapshot()
        stack.push_async_callback(self._provider.discard, image)
        return image

    @asynccontextmanager
    async def _sandbox(self, image: SandboxImage | None = None) -> AsyncGenerator[Sandbox]:
        identity = RolloutIdentity(purpose=f"probe {self._agent.name}")
        sandbox = await self._provider.create(self._spec, image=image, identity=identity)
        try:
            if image is None and self._script is not None:
                await sandbox.upload(*self._script)
            yield sandbox
        finally:
            await sandbox.teardown()

    @asynccontextmanager
    async def _session(
        self, sandbox: Sandbox, role: Role, resume: SessionSnapshot | None = None
    ) -> AsyncGenerator[Session]:
        session = await self._agent.connect(sandbox, role, resume=resume)
        try:
            yield session
        finally:
            await session.aclose()

    def _role_for(self, asks: bool) -> Role:
        env = {**self._role.env, ASK_SWITCH: "1"} if asks else self._role.env
        return self._role.model_copy(update={"env": env})

    @asynccontextmanager
    async def _new(self, *, asks: bool = False) -> AsyncGenerator[SandboxedSession]:
        async with (
            self._sandbox() as sandbox,
            self._session(sandbox, self._role_for(asks)) as session,
        ):
            yield SandboxedSession(sandbox, session)

    @asynccontextmanager
    async def _resumed(
        self, image: SandboxImage, snapshot: SessionSnapshot | None, *, asks: bool = False
    ) -> AsyncGenerator[SandboxedSession]:
        role = self._role_for(asks)
        async with (
            self._sandbox(image) as sandbox,
            self._session(sandbox, role, snapshot) as session,
        ):
            yield SandboxedSession(sandbox, session)

    @asynccontextmanager
    async def _forked(
        self, image: SandboxImage, state: SessionState
    ) -> AsyncGenerator[SandboxedSession]:
        async with self._sandbox(image) as sandbox:
            session = await self._agent.attach(sandbox, self._role, state)
            try:
                yield SandboxedSession(sandbox, session)
            finally:
                await session.aclose()

    @asynccontextmanager
    async def _relocated(
        self, sandbox: Sandbox, snapshot: SessionSnapshot, home: str
    ) -> AsyncGenerator[SandboxedSession]:
        role = self._role.model_copy(update={"env": {**self._role.env, "HOME": home}})
        async with self._session(sandbox, role, snapshot) as session:
            yield SandboxedSession(sandbox, session)

    async def _copy_home(self, sandbox: Sandbox, snapshot: SessionSnapshot, number: str) -> str:
        """Copy the session's files to their paths below another HOME; return that HOME."""
        home = (await sandbox.exec(["sh", "-c", "cd && pwd"])).stdout.strip()
        copy = f"{home}-{number}"
        directory = await sandbox.exec(
            f"install -d -o {shlex.quote(self._spec.user)} {copy}", user="root"
        )
        values = Values(base_url=None, api_key="none", model=None, home=copy, workdir=snapshot.cwd)
        targets = [render(path, values) for path in self._agent.decl.session.paths]
        pairs = [path for pair in zip(snapshot.files, targets, strict=True) for path in pair]
        files = await sandbox.exec(["sh", "-c", _COPY, "sh", *pairs])
        if not (directory.ok and files.ok):
            reason = f"{directory.stderr}{files.stderr}"
            raise AgentError(f"cannot copy the session files: {reason:.300}")
        return copy
