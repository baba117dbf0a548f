"""A sandbox in name only: a directory and some processes."""

import os
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from benchflow_contracts.errors import SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.pipes import Streams

from benchflow_sandbox_local.accounts import AccountBook
from benchflow_sandbox_local.cgroup.group import NoGroup
from benchflow_sandbox_local.maker import Keeper
from benchflow_sandbox_local.sandbox import LocalSandbox

from .init import PlainInit

if TYPE_CHECKING:
    import socket


class PlainRunningBox:
    """The directory and the processes of one plain sandbox."""

    def __init__(self, name: str, directory: str) -> None:
        self._name = name
        self._init = PlainInit(name)
        self.directory = directory
        self.root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.netns = -1
        self.listener: socket.socket | None = None
        self.accounts = AccountBook(self.root)
        self.pid = 0

    @property
    def init(self) -> PlainInit:
        """What starts processes; raise `SandboxError` once this life is over."""
        if self.closed:
            raise SandboxError(f"the plain sandbox {self._name!r} is gone")
        return self._init

    @property
    def closed(self) -> bool:
        """Whether this life is over."""
        return self.root < 0

    def streams(self) -> Streams:
        """Make the pipes of a new process."""
        return Streams()

    async def ended(self) -> None:
        """Return at once: there is no first process."""

    def close(self) -> None:
        """Kill everything and let go. Idempotent."""
        root, self.root = self.root, -1
        if root >= 0:
            os.close(root)
            self._init.end()


class PlainSandbox(LocalSandbox):
    """Runs commands as the runner's user in a private directory.

    Paths of `upload`, `download` and `cwd` are below that directory. Nothing else
    is kept apart: not the files, the network, the processes or the users.
    """

    _bounded = False

    def __init__(self, name: str, spec: SandboxSpec, keeper: Keeper, directory: str) -> None:
        super().__init__(name, spec, NoGroup(), keeper, None, rooted=False)
        self._directory = directory

    def _account(self, name: str) -> Account:
        if name != self.spec.user:
            raise SandboxUnsupportedError(
                f"user {name!r}: a plain sandbox has no user but the runner's",
                hint="run where namespaces are allowed",
            )
        return Account(name, os.getuid(), os.getgid(), (), self._real(self.spec.workdir))

    def _shell(self) -> str:
        return next(path for path in ("/bin/bash", "/bin/sh") if os.access(path, os.X_OK))

    def _directory_of(self, cwd: str | None) -> str:
        return self._real(cwd or self.spec.workdir)

    def hold_for_seal(self) -> AbstractAsyncContextManager[None]:
        """Hold nothing: of what follows, everything is refused."""
        return nullcontext()

    def _real(self, path: str) -> str:
        return f"{self._directory}{absolute(path)}"
