"""An account at Modal."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpclib.client
import modal
from benchflow_contracts.errors import SandboxError, SandboxLostError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec, SnapshotLevel
from benchflow_sandbox_remote import (
    ENTRY,
    BoxSize,
    CloudRecord,
    OutputTail,
    SdkSandbox,
    Transport,
    egress_doors,
    entry_order,
    record_of_tags,
    timed_tags,
    whole_seconds_of,
)
from benchflow_sandbox_remote.limited_grpclib import limit_messages
from modal import experimental
from modal.config import config

from .errors import typed_errors
from .transport import SILENCE, ExecTransport

IMAGE = "debian:bookworm-slim"
"""The image of a spec without one."""
_DAY = 24 * 3600  # Modal's limit of a lifetime, which no call extends
_WAITING = 3600  # for questions to a user and for branches, which a deadline does not include
_CALL_SECONDS, _HTTPS = 60, 443
_TAG = "benchflow-"
_SNAPSHOT, _MEMORY = "snapshot://", "sn-"  # how the names of snapshots begin, ours and Modal's
_SNAPSHOT_LIFETIME = _DAY  # a snapshot is of use while its sandboxes may run


class ModalSandbox(SdkSandbox):
    """One sandbox of Modal."""

    typed_errors = typed_errors

    def __init__(self, sandbox: Any, size: BoxSize | None = None) -> None:  # noqa: ANN401
        super().__init__(str(sandbox.object_id))
        self._sandbox = sandbox  # a `modal.Sandbox`, whose types are not complete
        self.size = size  # what was requested, which is the least that is billed
        self.restore: Callable[[str], Awaitable[Any]] | None = None  # with snapshots of memory

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file inside, by Modal's own program there."""
        await self._sandbox.filesystem.write_bytes.aio(content, path)

    async def execute(self, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end."""
        # Modal does not restore the processes of its own commands.
        argv = argv if self.restore is None else entry_order(argv)
        process = await self._sandbox.exec.aio(*argv, timeout=_CALL_SECONDS, workdir="/")
        code: int = await process.wait.aio()  # -1: out of time
        output = OutputTail(argv[0])
        if code > 0:
            async for text in process.stderr:
                output.add(text)
        return code, output.text

    async def open_link(self) -> Transport:
        """Connect to the link inside."""
        return await ExecTransport.start(self._sandbox)

    async def snapshot(self, level: SnapshotLevel) -> str:
        """Take a snapshot. Modal deletes one of files after a day, one of memory after a week."""
        if level == "live":
            return await self._snapshot_memory()
        with typed_errors("take a snapshot"):
            image = await self._sandbox.snapshot_filesystem.aio(300, ttl=_SNAPSHOT_LIFETIME)
        return str(image.object_id)

    async def _snapshot_memory(self) -> str:
        """Take a snapshot, which ends the sandbox, and continue in a sandbox of the snapshot."""
        assert self.restore is not None, "a sandbox without snapshots of memory"
        with typed_errors("take a live snapshot", missing=SandboxError):
            taken = await self._sandbox._experimental_snapshot.aio()  # noqa: SLF001
        before, self._sandbox = self._sandbox, await self.restore(str(taken.object_id))
        self.id = str(self._sandbox.object_id)
        await ModalSandbox(before).delete()
        return str(taken.object_id)

    async def remove(self) -> None:
        """Delete the sandbox."""
        await self._sandbox.terminate.aio()

    async def clean_up(self) -> None:
        """Close the connection to the sandbox."""
        await self._sandbox.detach.aio()


class ModalCloud:
    """An account."""

    def __init__(self, app: str, token_id: str | None, token_secret: str | None) -> None:
        self._app_name = app
        self._token = token_id or config.get("token_id"), token_secret or config.get("token_secret")
        self.account = str(self._token[0]) if all(self._token) else ""  # the id of the token
        self._client: Any = None
        self._app: Any = None
        self.has_memory = False  # whether new sandboxes have snapshots of memory
        self._images: dict[str, modal.Image] = {}
        self._networks: dict[str, str] = {}  # by memory snapshot
        self._connecting = asyncio.Lock()
        limit_messages(grpclib.client)

    async def connect(self) -> None:
        """Connect to the account, and find the app of the sandboxes. Idempotent.

        Raises:
            CredentialsError: The token is missing or refused.
            SandboxError: Modal does not answer.
        """
        async with self._connecting:
            with typed_errors("use the account"):
                if self._client is None:
                    self._client = await modal.Client.from_credentials.aio(*self._token)
                await self._client.hello.aio()
                options: dict[str, Any] = {"client": self._client, "create_if_missing": True}
                self._app = await modal.App.lookup.aio(self._app_name, **options)

    async def _connected(self) -> tuple[Any, Any]:
        if self._app is None:
            await self.connect()
        return self._client, self._app

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> ModalSandbox:
        """Create a sandbox of the image. It ends when it was idle for `lifetime` seconds."""
        client, app = await self._connected()
        name = spec.image or IMAGE
        sdk: Any = modal  # its types are not complete
        if name.startswith(_SNAPSHOT):
            image = sdk.Image.from_id(name.removeprefix(_SNAPSHOT), client=client)
        else:
            image = self._images.setdefault(name, sdk.Image.from_registry(name))
        tags = timed_tags(_TAG, labels)
        with typed_errors(f"create a sandbox of the image {name!r}"):
            sandbox = await self._named(
                key,
                sdk.Sandbox.create.aio(
                    *(ENTRY if self.has_memory else ()),
                    _experimental_enable_snapshot=self.has_memory,
                    client=client,
                    app=app,
                    name=key,
                    image=image,
                    tags=tags,
                    timeout=whole_seconds_of(labels, most=_DAY, more=_WAITING, cloud="Modal"),
                    # The command of the link ends first, if the runner was killed.
                    idle_timeout=max(1, round(max(lifetime - SILENCE, lifetime / 2))),
                    # Served doors, the allowlist and ports are served through the link.
                    block_network=spec.network != "public",
                    _experimental_outbound_policy=_policy_of(spec),
                    cpu=_request(spec.limits.cpus, 0.5),
                    memory=_request(spec.limits.memory_mb, 1),
                ),
            )
        return self._made(sandbox, spec, tags)

    async def _named(self, name: str, creating: Awaitable[Any]) -> Any:  # noqa: ANN401
        try:
            return await creating
        except modal.exception.AlreadyExistsError:  # the answer of an earlier try was lost
            client, _ = await self._connected()
            return await modal.Sandbox.from_name.aio(self._app_name, name, client=client)

    def _made(self, sandbox: Any, spec: SandboxSpec, tags: dict[str, str]) -> ModalSandbox:  # noqa: ANN401
        least = {"vcpus": spec.limits.cpus or 0.25, "memory_mb": spec.limits.memory_mb or 128}

        async def restore(snapshot: str) -> Any:  # noqa: ANN401
            self._networks[snapshot] = spec.network
            return await self._restore(snapshot, secrets.token_hex(16), tags)

        made = ModalSandbox(sandbox, BoxSize(**least))
        made.restore = restore if self.has_memory else None
        return made

    async def _restore(self, snapshot: str, name: str, tags: dict[str, str]) -> Any:  # noqa: ANN401
        """Create a sandbox from a snapshot of memory."""
        client, _ = await self._connected()
        sdk: Any = modal
        with typed_errors(f"create a sandbox from {snapshot!r}"):
            found = sdk.SandboxSnapshot.from_id(snapshot, client=client)
            restoring = sdk.Sandbox._experimental_from_snapshot.aio(found, client, name=name)  # noqa: SLF001
            sandbox = await self._named(name, restoring)
            await sandbox.set_tags.aio(tags)
        return sandbox

    async def create_from(self, snapshot: str, spec: SandboxSpec, **more: Any) -> ModalSandbox:  # noqa: ANN401
        """Create a sandbox from a snapshot of the account; see `create`."""
        if snapshot.startswith(_MEMORY):
            if (network := self._networks.get(snapshot)) not in {None, spec.network}:
                problem = f"Modal: {snapshot!r} has the network {network!r}, not {spec.network!r}"
                raise SandboxUnsupportedError(problem, hint="branch by state")
            tags = timed_tags(_TAG, more["labels"])
            return self._made(await self._restore(snapshot, more["key"], tags), spec, tags)
        image = {"image": f"{_SNAPSHOT}{snapshot}"}
        return await self.create(spec.model_copy(update=image), **more)

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the running sandboxes of the app that have this label."""
        client, app = await self._connected()
        with typed_errors("list the sandboxes"):
            listed = modal.Sandbox.list.aio(app_id=app.app_id, client=client)
            every = [each async for each in listed]
        for each in every:
            tags: dict[str, str] = {}
            with suppress(SandboxLostError), typed_errors("read the tags of a sandbox"):
                tags = await each.get_tags.aio()
            record = record_of_tags(_TAG, str(each.object_id), tags)
            if label in record.labels:
                yield record

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Restart the idle time of a sandbox by a short command."""
        del lifetime
        with typed_errors("extend a sandbox"):
            async with asyncio.timeout(_CALL_SECONDS):
                found = await self._find(sandbox)
                await found.run(["true"])
                await found.clean_up()

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        with suppress(SandboxLostError):
            await (await self._find(sandbox)).delete()

    async def _find(self, sandbox: str) -> ModalSandbox:
        client, _ = await self._connected()
        with typed_errors(f"find {sandbox!r}"):
            return ModalSandbox(await modal.Sandbox.from_id.aio(sandbox, client=client))

    async def discard(self, snapshot: str) -> None:
        """Delete a snapshot of files. Modal has no call to delete one of memory. Idempotent."""
        if snapshot.startswith(_MEMORY):
            return
        client, _ = await self._connected()
        images: Any = experimental
        with suppress(SandboxLostError), typed_errors("delete a snapshot"):
            await images.image_delete.aio(snapshot, client=client)

    async def aclose(self) -> None:
        """Close the connection to the account. Idempotent."""
        client, self._client, self._app = self._client, None, None
        if client is not None:
            await client.close.aio()


def _policy_of(spec: SandboxSpec) -> Any:  # noqa: ANN401 - the SDK's types are not complete
    """Return the policy by which Modal sets the headers of doors outside, or None without any."""
    doors = egress_doors(spec, port=_HTTPS, cloud="Modal")
    policy: Any = experimental.OutboundPolicy()
    for door in doors:
        policy = policy.with_header_replacement(domain=door.endpoint.host, headers=door.headers)
    return policy if doors else None


def _request(limit: float | None, factor: float) -> Any:  # noqa: ANN401 - an int or a float
    # A request and its limit.
    return None if limit is None else (type(limit)(limit * factor),) * 2
