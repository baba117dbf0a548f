"""An account at E2B, or at a server with its API."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypedDict

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import CloudRecord, LineTransport, Transport
from e2b import AsyncSandbox, CommandExitException

from .errors import typed_errors
from .transport import CommandTransport

TEMPLATE = "base"
"""E2B's own template, which every account has."""
_COMMAND_SECONDS = 60


class Connection(TypedDict, total=False):
    """Options of each call of the SDK."""

    api_key: str
    api_url: str
    sandbox_url: str
    domain: str


class E2bSandbox:
    """One sandbox of E2B. Its commands run as root."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        """E2B's id."""
        return self._sandbox.sandbox_id

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside."""
        with typed_errors(f"write {path}"):
            files: Any = self._sandbox.files
            await files.write(path, content, user="root")
        await self.run(["chmod", f"{mode:o}", path])

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command to its end."""
        command = shlex.join(argv)
        with typed_errors(f"run {command[:80]!r}"):
            try:
                await self._sandbox.commands.run(
                    command, user="root", cwd="/", timeout=_COMMAND_SECONDS
                )
            except CommandExitException as error:
                output = (error.stderr or error.stdout or "").strip()[-500:]
                raise SandboxError(
                    f"{command[:80]!r} ended with {error.exit_code}: {output}"
                ) from error

    async def dial(self) -> Transport:
        """Connect to the link inside."""
        return LineTransport(await CommandTransport.start(self._sandbox))

    async def delete(self) -> None:
        """Delete the sandbox. Idempotent."""
        with typed_errors("delete a sandbox"):
            await self._sandbox.kill()


class E2bCloud:
    """An account."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> E2bSandbox:
        """Create a sandbox of the template that `spec.image` names."""
        template = spec.image or TEMPLATE
        with typed_errors(f"create a sandbox of the template {template!r}"):
            sandbox = await AsyncSandbox.create(
                template=template,
                timeout=_seconds(lifetime),
                metadata=dict(labels),
                # Doors and the allowlist are served through the link.
                allow_internet_access=spec.network == "public",
                idempotency_key=key,
                **self._connection,
            )
        return E2bSandbox(sandbox)

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the sandboxes that have this label, running or paused."""
        pages = AsyncSandbox.list(**self._connection)
        while pages.has_next:
            with typed_errors("list the sandboxes"):
                page = await pages.next_items()
            for each in page:
                if label in (each.metadata or {}):
                    yield CloudRecord(each.sandbox_id, each.metadata, each.started_at.timestamp())

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now."""
        with typed_errors("extend a sandbox"):
            await AsyncSandbox.set_timeout(sandbox, _seconds(lifetime), **self._connection)

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        with typed_errors("delete a sandbox"):
            await AsyncSandbox.kill(sandbox, **self._connection)

    async def aclose(self) -> None:
        """Do nothing: the SDK's connections belong to the event loop."""
        await asyncio.sleep(0)


def _seconds(lifetime: float) -> int:
    return max(1, round(lifetime))
