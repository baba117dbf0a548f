"""An account at E2B, or at a server with its API."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import CredentialsError, SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec, SnapshotLevel
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_remote import (
    BoxSize,
    CloudRecord,
    ImageBuilds,
    ImagePlanner,
    LineTransport,
    Transport,
)
from e2b import (
    ALL_TRAFFIC,
    AsyncSandbox,
    CommandExitException,
    SandboxNetworkOpts,
    SnapshotMode,
)

from .errors import typed_errors
from .templates import (
    ENVIRONMENT,
    MAX_BYTES,
    TAG,
    Connection,
    TemplateBuild,
    own_template,
    with_image,
)
from .transport import CommandTransport

_COMMAND_SECONDS = 60
_SNAPSHOT_HINT = "ask E2B to enable snapshots of files, or use agents that can be forked live"


class E2bSandbox:
    """One sandbox of E2B. Its commands run as root."""

    has_link = False

    def __init__(self, sandbox: AsyncSandbox, images: dict[str, ImageConfig]) -> None:
        self._sandbox, self._images = sandbox, images
        self.size: BoxSize | None = None
        """The size of its template, if E2B said it."""
        self.image = ImageConfig()

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

    async def read(self, path: str, most: int) -> bytes:
        """Read a file inside, which the image may have made endless."""
        data = b""
        with typed_errors(f"read {path}"):
            async with await self._sandbox.files.read(
                path, format="stream", user="root", request_timeout=_COMMAND_SECONDS
            ) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > most:
                        raise SandboxError(f"E2B: {path} has more than {most} bytes")
        return data

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

    async def snapshot(self, level: SnapshotLevel) -> str:
        """Take a snapshot. E2B pauses the sandbox for it, and ends its connections."""
        mode: SnapshotMode = "full" if level == "live" else "filesystem"
        with typed_errors(f"take a {level} snapshot", hint=_SNAPSHOT_HINT):
            info = await self._sandbox.create_snapshot(mode=mode)
        self._images[info.snapshot_id] = self.image
        return info.snapshot_id

    async def delete(self) -> None:
        """Delete the sandbox. Idempotent."""
        with typed_errors("delete a sandbox"):
            await self._sandbox.kill()


def network_of(spec: SandboxSpec) -> SandboxNetworkOpts | None:
    """Return the rules for the doors that are not served inside, or None without such doors.

    E2B adds the headers of a door with the path `egress` to each request to its host.
    """
    hosts = spec.outside_hosts("egress")
    if spec.network == "model-only":
        hosts = tuple(dict.fromkeys((*hosts, *spec.outside_hosts("token"))))
    if not hosts:
        return None
    rules: dict[str, Any] = {
        door.endpoint.host: [{"transform": {"headers": dict(door.headers)}}]
        for door in spec.doors
        if door.path == "egress"
    }
    if spec.network == "public":
        return {"allow_out": [*hosts, ALL_TRAFFIC], "rules": rules}
    return {"allow_out": [*hosts], "deny_out": [ALL_TRAFFIC], "rules": rules}


class E2bCloud:
    """An account."""

    def __init__(self, connection: Connection, locks: Path) -> None:
        self._connection = connection
        self._planner, self._builds = ImagePlanner(TAG), ImageBuilds(locks)
        self._images: dict[str, ImageConfig] = {}
        """By template and snapshot. Nothing that ran in a sandbox can change them."""
        self._sizes: dict[str, BoxSize] = {}
        """By template."""

    async def connect(self) -> None:
        """Check the key by a list of one sandbox.

        Raises:
            CredentialsError: No key is set, or E2B refuses it.
            SandboxError: E2B does not answer.
        """
        self._check_key()
        with typed_errors("use the account"):
            await AsyncSandbox.list(limit=1, **self._connection).next_items()

    def _check_key(self) -> None:
        if "api_key" not in self._connection:
            raise CredentialsError("E2B: no key", hint="set E2B_API_KEY to the key of your account")

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> E2bSandbox:
        """Create a sandbox of the template that the spec needs."""
        options: dict[str, Any] = {"key": key, "labels": labels, "lifetime": lifetime}
        spec = with_image(spec)
        if (template := own_template(spec)) is not None:
            return await self.create_from(template, spec, **options)
        build = await self._build_of(spec)
        try:
            sandbox = await self.create_from(build.name, spec, **options)
        except SandboxUnsupportedError:
            self._builds.forget(build.plan)
            raise
        try:
            if build.name not in self._images:
                self._images[build.name] = build.image(await sandbox.read(ENVIRONMENT, MAX_BYTES))
        except BaseException:
            await finish(sandbox.delete())
            raise
        sandbox.image, sandbox.has_link = self._images[build.name], True
        return sandbox

    async def build(self, spec: SandboxSpec) -> None:
        """Build the template of a spec, unless the account has it; see `ImageBuilds.ensure`."""
        self._check_key()
        spec = with_image(spec)
        if own_template(spec) is None:
            build = await self._build_of(spec)
            await self._builds.ensure(build.plan, build)

    async def _build_of(self, spec: SandboxSpec) -> TemplateBuild:
        return TemplateBuild(await self._planner.plan(spec), self._connection)

    async def create_from(
        self,
        snapshot: str,
        spec: SandboxSpec,
        *,
        key: str,
        labels: Mapping[str, str],
        lifetime: float,
    ) -> E2bSandbox:
        """Create a sandbox from a snapshot, which E2B treats as a template."""
        self._check_key()
        template = snapshot
        network = network_of(spec)
        with typed_errors(f"create a sandbox of the template {template!r}"):
            sandbox = await AsyncSandbox.create(
                template=template,
                timeout=_seconds(lifetime),
                metadata=dict(labels),
                # Served doors and the allowlist are served through the link.
                allow_internet_access=spec.network == "public" or network is not None,
                network=network,
                idempotency_key=key,
                **self._connection,
            )
        created = E2bSandbox(sandbox, self._images)
        created.image = self._images.get(snapshot, created.image)
        created.size = await self._size(template, sandbox)
        return created

    async def _size(self, template: str, sandbox: AsyncSandbox) -> BoxSize | None:
        if template not in self._sizes:
            try:
                with typed_errors("read the size of a sandbox"):
                    info = await sandbox.get_info()
            except SandboxError:
                return None  # the terms have a size, and a sandbox is there that must not be lost
            self._sizes[template] = BoxSize(vcpus=info.cpu_count, memory_mb=info.memory_mb)
        return self._sizes[template]

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the sandboxes that have this label, running or paused."""
        self._check_key()
        pages = AsyncSandbox.list(**self._connection)
        while pages.has_next:
            with typed_errors("list the sandboxes"):
                found = [
                    CloudRecord(each.sandbox_id, each.metadata, each.started_at.timestamp())
                    for each in await pages.next_items()
                    if label in (each.metadata or {})
                ]
            for each in found:
                yield each

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now."""
        with typed_errors("extend a sandbox"):
            await AsyncSandbox.set_timeout(sandbox, _seconds(lifetime), **self._connection)

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        with typed_errors("delete a sandbox"):
            await AsyncSandbox.kill(sandbox, **self._connection)

    async def discard(self, snapshot: str) -> None:
        """Delete a snapshot. Idempotent."""
        with typed_errors("delete a snapshot"):
            await AsyncSandbox.delete_snapshot(snapshot, **self._connection)

    async def aclose(self) -> None:
        """Do nothing: the SDK's connections belong to the event loop."""
        await asyncio.sleep(0)


def _seconds(lifetime: float) -> int:
    return max(1, round(lifetime))
