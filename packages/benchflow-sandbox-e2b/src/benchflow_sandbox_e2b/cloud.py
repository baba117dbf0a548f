"""An account at E2B, or at a server with its API."""

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import benchflow_sandbox_remote as remote
import e2b
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.sandbox import SandboxSpec, SnapshotLevel
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_remote.limited_pyqwest import limit_answers
from e2b.api import client_async, handle_api_exception, proxy_to_config
from e2b.api.client.api.templates import get_templates
from e2b.connection_config import READ_TIMEOUT

from .errors import typed_errors
from .templates import SCHEME, TAG, TemplateBuild

_DEFAULT = "base"
"""E2B's own template, which every account has."""
_BUILT = re.compile(r"(?<![\w-])benchflow-[0-9a-f]{40}$")
_COMMAND_SECONDS = 60
_SNAPSHOT = "ask E2B to enable snapshots of files, or use agents that can be forked live"


class E2bSandbox(remote.SdkSandbox):
    """One sandbox of E2B. `size` is that of its template, if it is known."""

    typed_errors = typed_errors

    def __init__(self, sandbox: e2b.AsyncSandbox, size: remote.BoxSize | None) -> None:
        super().__init__(sandbox.sandbox_id)
        self._sandbox, self.size = sandbox, size
        self.image, self.has_link = ImageConfig(), False

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file inside."""
        files: Any = self._sandbox.files
        await files.write(path, content, user="root")

    async def read(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the pieces of a file inside."""
        with typed_errors(f"read {path}"):
            async with await self._sandbox.files.read(
                path, format="stream", user="root", request_timeout=_COMMAND_SECONDS
            ) as pieces:
                async for piece in pieces:
                    yield piece

    async def execute(self, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end."""
        output = remote.OutputTail(command := shlex.join(argv))
        handle = await self._sandbox.commands.run(
            command,
            background=True,
            user="root",
            cwd="/",
            timeout=_COMMAND_SECONDS,
            on_stdout=output.add,
            on_stderr=output.add,
            retain_output=False,
        )
        try:
            await handle.wait()
        except e2b.CommandExitException as error:
            return error.exit_code, output.text
        except SandboxError:
            await handle.kill()
            raise
        return 0, ""

    async def open_link(self) -> remote.Transport:
        """Connect to the link inside, by the streams of a command. They carry only text."""
        commands, output = self._sandbox.commands, remote.PushedOutput()
        handle = await commands.run(
            f"exec {remote.PROGRAM} dial lines",
            background=True,
            stdin=True,
            user="root",
            cwd="/",
            timeout=0,  # the SDK ends a command after 60 s otherwise
            on_stdout=output.push,
            retain_output=False,
        )
        stdin: Any = commands.stream_input(handle.pid, timeout=0)

        async def close() -> None:
            with suppress(Exception):
                async with asyncio.timeout(5):
                    await handle.kill()
            await handle.disconnect()
            async with asyncio.timeout(1):
                await stdin.close()

        return remote.LineTransport(
            remote.QueuedTransport(output.until(handle.wait), stdin.send, close=close)
        )

    async def snapshot(self, level: SnapshotLevel) -> str:
        """Take a snapshot. E2B pauses the sandbox for it, and ends its connections."""
        with typed_errors(f"take a {level} snapshot", remedy=_SNAPSHOT):
            mode: e2b.SnapshotMode = "full" if level == "live" else "filesystem"
            info = await self._sandbox.create_snapshot(mode=mode)
        return info.snapshot_id

    async def remove(self) -> None:
        """Delete the sandbox."""
        await self._sandbox.kill()


def network_of(spec: SandboxSpec) -> e2b.SandboxNetworkOpts | None:
    """Return the rules for the doors that are not served inside, or None without such doors.

    E2B adds the headers of a door with the path `egress` to each request to its host.
    """
    hosts = [*remote.open_hosts(spec)]
    if not hosts:
        return None
    rules: dict[str, Any] = {
        door.endpoint.host: [{"transform": {"headers": dict(door.headers)}}]
        for door in spec.doors
        if door.path == "egress"
    }
    if spec.network == "public":
        return {"allow_out": [*hosts, e2b.ALL_TRAFFIC], "rules": rules}
    return {"allow_out": hosts, "deny_out": [e2b.ALL_TRAFFIC], "rules": rules}


class E2bCloud:
    """An account. `connection` has the options of each call of the SDK."""

    def __init__(self, connection: Mapping[str, Any], locks: Path) -> None:
        self._connection = connection
        with typed_errors("use the options"):
            config = e2b.ConnectionConfig(**connection)
            proxy = proxy_to_config(config.proxy)
        for seconds in (None, READ_TIMEOUT):  # the SDK shares these two between all of its calls
            shared = client_async.get_pyqwest_transport(
                proxy, seconds, http_version=config.http_version
            )
            limit_answers(shared, files="/files")
        build_of = partial(TemplateBuild, connection)
        self._images = remote.BuiltImages(
            SCHEME, _DEFAULT, salt=TAG, locks=locks, build_of=build_of
        )
        self._sizes: dict[str, remote.BoxSize] = {}
        """By template."""

    async def connect(self) -> None:
        """Check the key by a list of one sandbox."""
        with typed_errors("use the account"):
            await e2b.AsyncSandbox.list(limit=1, **self._connection).next_items()

    async def build(self, spec: SandboxSpec) -> None:
        """Build the template of a spec, unless the account has it."""
        await self._images.build(spec)

    async def create(
        self, spec: SandboxSpec, **options: Unpack[remote.CreateOptions]
    ) -> E2bSandbox:
        """Create a sandbox from the template of a spec, which `build` has built."""
        return await self._images.create(spec, partial(self.create_from, spec=spec, **options))

    async def create_from(
        self, snapshot: str, spec: SandboxSpec, **options: Unpack[remote.CreateOptions]
    ) -> E2bSandbox:
        """Create a sandbox from a snapshot, which E2B treats as a template."""
        network = network_of(spec)
        with typed_errors(f"create a sandbox of the template {snapshot!r}"):
            sandbox = await e2b.AsyncSandbox.create(
                template=snapshot,
                timeout=remote.whole_seconds(options["lifetime"]),
                metadata=dict(options["labels"]),
                # Served doors and the allowlist are served through the link.
                allow_internet_access=spec.network == "public" or network is not None,
                network=network,
                idempotency_key=options["key"],
                **self._connection,
            )
        return E2bSandbox(sandbox, await self._size(snapshot, sandbox))

    async def _size(self, template: str, sandbox: e2b.AsyncSandbox) -> remote.BoxSize | None:
        if template not in self._sizes:
            try:
                with typed_errors("read the size of a sandbox"):
                    info = await sandbox.get_info()
            except SandboxError:
                return None  # the terms have a size, and a sandbox is there that must not be lost
            self._sizes[template] = remote.BoxSize(vcpus=info.cpu_count, memory_mb=info.memory_mb)
        return self._sizes[template]

    async def list(self, label: str) -> AsyncIterator[remote.CloudRecord]:
        """Yield the sandboxes that have this label, running or paused."""
        pages = e2b.AsyncSandbox.list(**self._connection)
        while pages.has_next:
            with typed_errors("list the sandboxes"):
                found = [
                    remote.CloudRecord(each.sandbox_id, each.metadata, each.started_at.timestamp())
                    for each in await pages.next_items()
                    if label in (each.metadata or {})
                ]
            for each in found:
                yield each

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now."""
        with typed_errors("extend a sandbox"):
            await e2b.AsyncSandbox.set_timeout(
                sandbox, remote.whole_seconds(lifetime), **self._connection
            )

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        with typed_errors("delete a sandbox"):
            await e2b.AsyncSandbox.kill(sandbox, **self._connection)

    async def discard(self, snapshot: str) -> None:
        """Delete a snapshot, or a template. Idempotent."""
        with typed_errors("delete a snapshot"):
            await e2b.AsyncSandbox.delete_snapshot(snapshot, **self._connection)

    async def images(self) -> AsyncIterator[remote.CloudImage]:
        """Yield the templates of the account that BenchFlow built."""
        with typed_errors("list the templates"):
            sdk: Any = client_async
            client = sdk.get_api_client(e2b.ConnectionConfig(**self._connection))
            answer: Any = await get_templates.asyncio_detailed(client=client)
            if answer.status_code >= 300:
                raise handle_api_exception(answer)
            found = [
                remote.CloudImage(each.template_id, built[0], used.timestamp())
                for each in answer.parsed
                if (built := _BUILT.search("".join(each.names[:1])))
                if (used := each.last_spawned_at or each.updated_at)
            ]
        for each in found:
            yield each

    async def aclose(self) -> None:
        """Do nothing: the SDK's connections belong to the event loop."""
        await asyncio.sleep(0)
