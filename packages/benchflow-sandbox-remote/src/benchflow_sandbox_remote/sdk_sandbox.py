"""A sandbox of a cloud whose SDK writes files, runs commands and deletes sandboxes."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence

from benchflow_contracts.errors import SandboxError, SandboxLostError

from .errors import ErrorTable, check_exit
from .transport import Transport


class SdkSandbox(ABC):
    """A `CloudSandbox` by single calls of an SDK.

    Errors of the SDK in those calls become errors of the contracts here.
    """

    typed_errors: ErrorTable
    """The errors of the SDK."""

    def __init__(self, identity: str) -> None:
        """`identity` is the cloud's own id."""
        self.id = identity
        self._is_deleted = False

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file as root. Create its directory if it is missing."""

    @abstractmethod
    async def execute(self, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command as root in `/`, with a time limit; return its exit code and output."""

    @abstractmethod
    async def open_link(self) -> Transport:
        """Connect to the link inside; see `dial`."""

    @abstractmethod
    async def remove(self) -> None:
        """Delete the sandbox, which may be deleted already."""

    async def read_end(self) -> str | None:
        """Return the state of a sandbox that has ended; `None`: it runs, or this is not known."""
        return None

    async def clean_up(self) -> None:
        """Delete what belonged to the sandbox. Called once, when the sandbox is deleted."""
        return

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside."""
        with self.typed_errors(f"write {path}"):
            await self.write_file(path, content)
        await self.run(["chmod", f"{mode:o}", path])

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command to its end."""
        command = shlex.join(argv)
        with self.typed_errors(f"run {command[:80]!r}"):
            code, output = await self.execute(argv)
        check_exit(command, code, output)

    async def dial(self) -> Transport:
        """Connect to the link inside. If that fails, say whether the sandbox has ended."""
        try:
            with self.typed_errors("connect to the link"):
                return await self.open_link()
        except (OSError, SandboxError) as error:
            if (state := await self._end()) is not None:
                raise SandboxLostError(f"sandbox {self.id!r} is {state}") from error
            raise

    async def _end(self) -> str | None:
        try:
            with self.typed_errors("read the state of a sandbox"):
                return await self.read_end()
        except SandboxLostError:
            return "deleted"
        except SandboxError:
            return None  # the cloud does not answer, and a later try may succeed

    async def delete(self) -> None:
        """Delete the sandbox. Idempotent."""
        if self._is_deleted:
            return
        try:
            with self.typed_errors("delete a sandbox"):
                await self.remove()
        except SandboxError as error:
            # A cloud may refuse the call while it deletes the sandbox.
            if not isinstance(error, SandboxLostError) and await self._end() is None:
                raise
        await self.clean_up()
        self._is_deleted = True
