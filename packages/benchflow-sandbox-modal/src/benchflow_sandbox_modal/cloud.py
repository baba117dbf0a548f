"""An account at Modal."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpclib.client
import modal
from benchflow_contracts.errors import SandboxLostError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec, SnapshotLevel
from benchflow_sandbox_remote import (
    BoxSize,
    CloudRecord,
    OutputTail,
    SdkSandbox,
    Transport,
    labels_of,
    seconds_left,
    tags_of,
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
_SNAPSHOT, _SNAPSHOT_SECONDS = "snapshot://", 300
_SNAPSHOT_LIFETIME = _DAY  # a snapshot is of use while its sandboxes may run
_CREATED = "benchflow.created"
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")


class ModalSandbox(SdkSandbox):
    """One sandbox of Modal."""

    typed_errors = typed_errors

    def __init__(self, sandbox: Any, size: BoxSize | None = None) -> None:  # noqa: ANN401
        super().__init__(str(sandbox.object_id))
        self._sandbox = sandbox  # a `modal.Sandbox`, whose types are not complete
        self.size = size  # what was requested, which is the least that is billed

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file inside, by Modal's own program there."""
        # The first call waits for the image.
        await self._sandbox.filesystem.write_bytes.aio(content, path)

    async def execute(self, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end."""
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
        """Take a snapshot of the files, which Modal deletes after a day."""
        if level != "filesystem":
            raise SandboxUnsupportedError(f"Modal: no {level} snapshots", hint="branch by state")
        with typed_errors("take a snapshot"):
            image = await self._sandbox.snapshot_filesystem.aio(
                _SNAPSHOT_SECONDS, ttl=_SNAPSHOT_LIFETIME
            )
        return str(image.object_id)

    async def remove(self) -> None:
        """Delete the sandbox."""
        await self._sandbox.terminate.aio()

    async def clean_up(self) -> None:
        """Close the connection to the sandbox."""
        await self.close()

    async def close(self) -> None:
        """Close the connection to the sandbox."""
        await self._sandbox.detach.aio()


class ModalCloud:
    """An account."""

    def __init__(self, app: str, token_id: str | None, token_secret: str | None) -> None:
        self._app_name = app
        self._token = token_id or config.get("token_id"), token_secret or config.get("token_secret")
        self.account = str(self._token[0]) if all(self._token) else ""
        """The id of the token; `""` without a token."""
        self._client: Any = None
        self._app: Any = None
        self._images: dict[str, modal.Image] = {}
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
        with typed_errors(f"create a sandbox of the image {name!r}"):
            try:
                sandbox = await sdk.Sandbox.create.aio(
                    client=client,
                    app=app,
                    name=key,
                    image=image,
                    tags=tags_of(_TAG, {**labels, _CREATED: str(time.time())}),
                    timeout=_timeout(labels),
                    # The command of the link ends first, if the runner was killed.
                    idle_timeout=max(1, round(max(lifetime - SILENCE, lifetime / 2))),
                    # Served doors, the allowlist and ports are served through the link.
                    block_network=spec.network != "public",
                    _experimental_outbound_policy=_policy_of(spec),
                    cpu=_request(spec.limits.cpus, 0.5),
                    memory=_request(spec.limits.memory_mb, 1),
                )
            except modal.exception.AlreadyExistsError:
                # The answer of an earlier try was lost.
                sandbox = await modal.Sandbox.from_name.aio(self._app_name, key, client=client)
        least = {"vcpus": spec.limits.cpus or 0.25, "memory_mb": spec.limits.memory_mb or 128}
        return ModalSandbox(sandbox, BoxSize(**least))

    async def create_from(self, snapshot: str, spec: SandboxSpec, **more: Any) -> ModalSandbox:  # noqa: ANN401
        """Create a sandbox from a snapshot, which is an image of the account; see `create`."""
        image = {"image": f"{_SNAPSHOT}{snapshot}"}
        return await self.create(spec.model_copy(update=image), **more)

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the running sandboxes of the app that have this label."""
        client, app = await self._connected()
        with typed_errors("list the sandboxes"):
            listed = modal.Sandbox.list.aio(app_id=app.app_id, client=client)
            every = [each async for each in listed]
        for each in every:
            labels: dict[str, str] = {}
            with suppress(SandboxLostError), typed_errors("read the tags of a sandbox"):
                labels = labels_of(_TAG, await each.get_tags.aio())
            if label in labels:
                created = labels.pop(_CREATED, "")
                at = float(created) if _TIME.fullmatch(created) else 0.0
                yield CloudRecord(str(each.object_id), labels, at)

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Restart the idle time of a sandbox by a short command."""
        del lifetime
        with typed_errors("extend a sandbox"):
            async with asyncio.timeout(_CALL_SECONDS):
                found = await self._find(sandbox)
                await found.run(["true"])
                await found.close()

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id. Idempotent."""
        with suppress(SandboxLostError):
            await (await self._find(sandbox)).delete()

    async def _find(self, sandbox: str) -> ModalSandbox:
        client, _ = await self._connected()
        with typed_errors(f"find {sandbox!r}"):
            return ModalSandbox(await modal.Sandbox.from_id.aio(sandbox, client=client))

    async def discard(self, snapshot: str) -> None:
        """Delete a snapshot. Idempotent."""
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
    """Return the policy by which Modal sets the headers of doors outside, or None without any.

    Modal does so for HTTPS at port 443, and not with a closed network or an allowlist of its own.
    """
    doors = [door for door in spec.doors if door.path == "egress"]
    policy: Any = experimental.OutboundPolicy()
    for door in doors:
        # Plain HTTP is for the loopback alone: the gateway refuses all other URLs of that kind.
        if door.upstream.startswith("https:") and door.endpoint.port != _HTTPS:
            raise SandboxUnsupportedError(
                f"Modal adds headers at port {_HTTPS} only, and {door.upstream!r} has another one",
                hint=f"serve the gateway at port {_HTTPS}, or use --model-access tunnel",
            )
        policy = policy.with_header_replacement(domain=door.endpoint.host, headers=door.headers)
    return policy if doors else None


def _timeout(labels: Mapping[str, str]) -> int:
    seconds = seconds_left(labels)
    if seconds is not None and seconds > _DAY:
        raise SandboxUnsupportedError(
            f"Modal ends a sandbox after 24 h, and the rollout may take {seconds / 3600:.1f} h",
            hint="lower the time limits of the task",
        )
    return _DAY if seconds is None else min(_DAY, round(seconds) + _WAITING)


def _request(limit: float | None, factor: float) -> Any:  # noqa: ANN401 - an int or a float
    """Return a request and its limit: both are the limit of the spec."""
    return None if limit is None else (type(limit)(limit * factor),) * 2
