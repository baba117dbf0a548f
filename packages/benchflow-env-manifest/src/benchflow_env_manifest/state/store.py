"""Capture, restore, read and check all state of one world together."""

import hashlib
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from uuid import uuid4

from benchflow_contracts import (
    EnvironmentError_,
    EnvState,
    SandboxUnsupportedError,
    SnapshotError,
    StateSnapshot,
)

from benchflow_env_manifest.guard import Guard
from benchflow_env_manifest.sandbox_shell import SandboxShell

from .backend import ROOT, StateBackend, refusal
from .reading import in_folder, merged, read_copies
from .servers import Servers

_ID = re.compile(r"[0-9a-f]{32}")


class StateStore:
    """The backends of a manifest, in its order.

    A snapshot is a directory `ROOT/ID` with one entry per backend, `0`, `1` and so on.
    Its digest binds all of them.
    """

    def __init__(self, shell: SandboxShell, guard: Guard, backends: Sequence[StateBackend]) -> None:
        self._shell = shell
        self._guard = guard
        self._backends = tuple(backends)
        self.servers = Servers(backends)
        self._server_state: EnvState | None = None
        self._digests: dict[str, tuple[str, ...]] = {}

    async def examine(self) -> frozenset[str]:
        """Return the existing state files, after the check that the agent cannot change them.

        Raises:
            EnvironmentError_: The agent can change a file.
        """
        return await self._guard.examine()

    @property
    def files(self) -> tuple[str, ...]:
        """Every declared database file."""
        return tuple(path for each in self._backends for path in each.files)

    def adopt(self) -> None:
        """Use the state in the files of a checkpoint.

        Raises:
            EnvironmentError_: Files cannot include some of the state.
        """
        for backend in self._backends:
            if backend.only_live:
                raise refusal(backend)

    @asynccontextmanager
    async def quiesce(self) -> AsyncGenerator[None, None]:
        """Stop all servers from writing; write their state to disk, and read it.

        Raises:
            EnvironmentError_: A server did not become idle; all are released.
        """
        async with self.servers.hold(persist=True):
            self._server_state = await self.servers.read()
            try:
                yield
            finally:
                self._server_state = None

    async def query(self) -> EnvState:
        """Read all state of one instant.

        Raises:
            EnvironmentError_: A file is refused, damaged or too large; or the state of a server
                is read under a freeze outside of `quiesce`.
        """
        await self._guard.examine()
        return await self._state()

    async def _state(self) -> EnvState:
        if self._server_state is not None:
            return await self._read_files(self._server_state)
        async with self._hold_servers():
            return await self._read_files(await self.servers.read())

    async def snapshot(self) -> StateSnapshot:
        """Copy everything into a new directory of the sandbox.

        Raises:
            EnvironmentError_: The capture failed; its files are removed.
        """
        await self._guard.examine()
        async with self._hold_servers():
            return await self._capture(self._backends)

    async def restore(self, snap: StateSnapshot, *, online: bool | None = None) -> None:
        """Restore a snapshot.

        While the services are restarted, `online` selects the backends: files before
        they start, servers once they respond. State in memory is new.

        If a backend cannot be restored, the earlier ones get their previous state back.

        Raises:
            EnvironmentError_: The snapshot is missing or does not match its digest, or a
                backend could not be written.
        """
        digests = await self._digests_of(snap)
        selected = [b for b in self._backends if online is None or _is_selected(b, online)]
        await self._guard.examine()
        if len(selected) < 2:  # a single backend is unchanged after an error
            await self._restore_backends(selected, snap.path, digests)
            return
        async with self._hold_servers():
            before = await self._capture(selected)
        done: list[StateBackend] = []
        try:
            await self._restore_backends(selected, snap.path, digests, done.append)
        except BaseException:
            await self._restore_backends(done, before.path, self._digests[before.id])
            raise
        finally:
            await self.forget(before)

    async def ask(self, queries: Mapping[str, tuple[str, str]]) -> Mapping[str, object]:
        """Return the first value of each SELECT, given as (state, SQL).

        Raises:
            EnvironmentError_: A query failed.
        """
        answers: dict[str, object] = {}
        for backend in self._backends:
            own = {name: q for name, q in queries.items() if backend.answers_about(q[0])}
            if own:
                async with self._still_for(backend) as still:
                    answers |= await in_folder(partial(backend.ask, own, still=still))
        return answers

    async def check(self, expected: EnvState | None = None, *, files_checked: bool = False) -> None:
        """Let each backend check that it is undamaged and that the state is `expected`.

        With `files_checked`, the files are not checked again: no agent has run since.

        Raises:
            EnvironmentError_: A backend is damaged.
            SnapshotError: The state differs from `expected`.
        """
        if not files_checked:
            await self._guard.examine()
        for backend in self._backends:
            if expected is None or not backend.reading_proves:
                async with self._still_for(backend) as still:
                    await in_folder(partial(backend.check, still=still))
        if expected is None or await self._is_cached(expected):
            return
        if not self._same(expected, await self._state()):
            raise SnapshotError(
                "the environment does not have the state of its checkpoint",
                hint="a service changes its state when it starts, or the copy is damaged",
            )

    async def _is_cached(self, expected: EnvState) -> bool:
        """Return whether cached contents of all backends equal `expected`."""
        states: list[EnvState] = []
        for backend in self._backends:
            if backend.online or (state := await backend.read_cached()) is None:
                return False
            states.append(state)
        return merged(states) == expected

    def _same(self, then: EnvState, now: EnvState) -> bool:
        at = time.time()
        for backend in self._backends:
            then, now = backend.without_expired(then, at), backend.without_expired(now, at)
        return then == now

    async def forget(self, snap: StateSnapshot) -> None:
        """Remove a snapshot. Idempotent."""
        self._digests.pop(snap.id, None)
        await self._remove(snap.path)

    async def _capture(self, backends: Sequence[StateBackend]) -> StateSnapshot:
        ident = uuid4().hex
        path = f"{ROOT}/{ident}"
        await self._shell.must(
            ["sh", "-c", f'umask 077; mkdir -p {ROOT} && mkdir "$1"', "sh", path],
            what="creating a directory for captured files",
        )
        digests: list[str] = []
        try:
            for index, backend in enumerate(self._backends):
                is_selected = backend in backends
                digests.append(await backend.capture(f"{path}/{index}") if is_selected else "")
            text = json.dumps(digests)
            record = ["sh", "-c", 'printf %s "$2" > "$1/digests"', "sh", path, text]
            await self._shell.must(record, what="saving the digests")
        except BaseException:
            await self._remove(path)
            raise
        self._digests[ident] = tuple(digests)
        return StateSnapshot(id=ident, path=path, digest=_combined(digests))

    async def _remove(self, path: str) -> None:
        for index, backend in enumerate(self._backends):
            await backend.forget(f"{path}/{index}")
        await self._shell.must(["rm", "-rf", path], what="removing captured files")

    async def _digests_of(self, snap: StateSnapshot) -> Sequence[str]:
        """Return each backend's digest. The digests of a parent are beside its copies."""
        if not _ID.fullmatch(snap.id) or snap.path != f"{ROOT}/{snap.id}":
            raise EnvironmentError_(
                f"snapshot {snap.id!r} at {snap.path!r} was not created by this environment",
                hint="restore only results of `snapshot`",
            )
        result = await self._shell.run(["cat", f"{snap.path}/digests"])
        if not result.ok:
            raise EnvironmentError_("restore failed: the snapshot is not in this sandbox")
        try:
            digests = [str(each) for each in json.loads(result.stdout)]
        except (ValueError, TypeError, RecursionError):
            digests = []
        if len(digests) != len(self._backends) or _combined(digests) != snap.digest:
            raise EnvironmentError_("restore failed: the snapshot does not match its digest")
        return digests

    async def _restore_backends(
        self,
        backends: Sequence[StateBackend],
        path: str,
        digests: Sequence[str],
        done: Callable[[StateBackend], None] = lambda _: None,
    ) -> None:
        for index, backend in enumerate(self._backends):
            if backend in backends:
                await backend.restore(f"{path}/{index}", digests[index])
                done(backend)

    def _hold_servers(self) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._server_state is not None else self.servers.hold(persist=False)

    async def _read_files(self, servers: EnvState) -> EnvState:
        plain = [each for each in self._backends if not each.online]
        if not plain:
            return servers
        return merged([servers, await read_copies(plain, self._still_for(plain[0]))])

    @asynccontextmanager
    async def _still_for(self, backend: StateBackend) -> AsyncGenerator[bool, None]:
        """Freeze the sandbox if the backend's files are read and a freeze is possible."""
        async with AsyncExitStack() as stack:
            still = not backend.online
            if still:
                try:
                    await stack.enter_async_context(self._shell.sandbox.freeze())
                except SandboxUnsupportedError:
                    still = False
            yield still


def _is_selected(backend: StateBackend, online: bool) -> bool:
    return backend.online == online and not backend.only_live


def _combined(digests: Sequence[str]) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(digests).encode()).hexdigest()
