"""An organization of Daytona."""

import asyncio
import shlex
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import ceil
from types import MappingProxyType
from typing import Any

import daytona
from benchflow_contracts.errors import (
    CredentialsError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import BoxSize, CloudRecord, Transport, WebSocketDialer

from .errors import typed_errors
from .transport import start_session
from .vault import Vault, secret_names

_SNAPSHOT = "snapshot://"
_MARK = {"benchflow": "sandbox"}
"""The label of every sandbox of BenchFlow: a query of Daytona needs a label with its value."""
_SECRETS = "benchflow-secrets"
"""The label of a sandbox with secrets. Its value is their key."""
_OTHER_LABELS = {*_MARK, _SECRETS, "code-toolbox-language"}
_CREATE_SECONDS = 600
"""The limit of one try, in which Daytona may pull an image."""
_SECONDS, _FORGET_SECONDS = 60, 10
_DEAD = {"destroyed", "destroying", "stopped", "stopping", "error", "build_failed", "archived"}


class DaytonaSandbox:
    """One sandbox of Daytona. Its commands run as root."""

    def __init__(
        self,
        sandbox: daytona.AsyncSandbox,
        vault: Vault,
        placeholders: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._sandbox, self._vault = sandbox, vault
        self.placeholders = placeholders
        self._is_deleted = False
        self._dialer = WebSocketDialer(self, self._locate, partial(start_session, sandbox))
        self.id = sandbox.id
        self.size = BoxSize(
            vcpus=sandbox.cpu, memory_mb=1024 * sandbox.memory, disk_mb=1024 * sandbox.disk
        )

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file inside."""
        with typed_errors(f"write {path}"):
            await self._sandbox.fs.upload_files([daytona.FileUpload(content, path)], timeout=300)
        await self.run(["chmod", f"{mode:o}", path])

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command to its end. Without a timeout, Daytona would end it after 10 seconds."""
        command = shlex.join(argv)
        with typed_errors(f"run {command[:80]!r}"):
            result = await self._sandbox.process.exec(command, cwd="/", timeout=_SECONDS)
        if result.exit_code:
            output = result.result.strip()[-500:]
            raise SandboxError(f"{command[:80]!r} ended with {result.exit_code}: {output}")

    async def dial(self) -> Transport:
        """Connect to the link inside, by its port or by a session."""
        try:
            return await self._dialer.dial()
        except (OSError, SandboxError) as error:
            if (state := await self._end()) is not None:
                raise SandboxLostError(f"Daytona: the sandbox is {state}") from error
            raise

    async def _locate(self, port: int) -> tuple[str, dict[str, str]]:
        with typed_errors("find the URL of a port"):
            found = await self._sandbox.get_preview_link(port, _SECONDS)
        return found.url, {"X-Daytona-Preview-Token": found.token}

    async def _end(self) -> str | None:
        """Return the state of a sandbox that does not run any more, with its reason."""
        found = self._sandbox
        try:
            with typed_errors("read the state of a sandbox"):
                await found.refresh_data(request_timeout=_SECONDS)
        except SandboxError as error:  # if Daytona does not answer, a later try may succeed
            return "deleted" if isinstance(error, SandboxLostError) else None
        if found.spot_evicted_at:
            return f"evicted since {found.spot_evicted_at}"
        state = "" if found.state is None else found.state.value
        return f"{state}: {found.error_reason}" if state in _DEAD else None

    async def delete(self) -> None:
        """Delete the sandbox and its secrets. Idempotent."""
        if self._is_deleted:
            return
        try:
            with typed_errors("delete a sandbox"):
                await self._sandbox.delete()
        except SandboxError:
            if await self._end() is None:  # Daytona refuses the call while it deletes
                raise
        if (key := self._sandbox.labels.get(_SECRETS)) is not None:
            await self._vault.forget(key)
        self._is_deleted = True


class DaytonaCloud:
    """The organization of a key. With `vm`, its sandboxes are virtual machines."""

    def __init__(self, config: Mapping[str, str], *, vm: bool) -> None:
        self._config: dict[str, Any] = {**config, "use_deprecated_polling": True}
        self._vm = vm
        self._client: daytona.AsyncDaytona | None = None

    def _sdk(self) -> daytona.AsyncDaytona:
        """Return the client, whose connections belong to the running event loop."""
        if "api_key" not in self._config:
            raise CredentialsError("Daytona: no key", hint="set DAYTONA_API_KEY to your key")
        if self._client is None:
            with warnings.catch_warnings():
                # The other way to wait for a state is one more WebSocket for each runner, and a
                # subscription for each sandbox of a list.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._client = daytona.AsyncDaytona(daytona.DaytonaConfig(**self._config))
        return self._client

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> DaytonaSandbox:
        """Create a sandbox with a name that belongs to `key`."""
        name, vault = f"benchflow-{key}", Vault(self._sdk())
        names = secret_names(spec, key)
        labels = {**labels, **_MARK, **({_SECRETS: key} if names else {})}
        placeholders: dict[str, str] = {}
        try:
            for door in filter(lambda each: each.name in names, spec.doors):
                placeholders[door.name] = await vault.store(door, names[door.name])
            with typed_errors("create a sandbox", missing=SandboxUnsupportedError):
                sandbox = await self._create(spec, name, labels, lifetime, names)
            self._check(sandbox, spec)
            await self.extend(sandbox.id, lifetime)
        except BaseException as error:
            if not isinstance(error, SandboxError) or not error.retryable:
                with suppress(Exception):  # what is left ends with its lifetime
                    async with asyncio.timeout(_FORGET_SECONDS):
                        await self.delete(name)
                        if names:
                            await vault.forget(key)
            raise
        return DaytonaSandbox(sandbox, vault, placeholders)

    async def _create(
        self,
        spec: SandboxSpec,
        name: str,
        labels: dict[str, str],
        lifetime: float,
        secrets: Mapping[str, str],
    ) -> daytona.AsyncSandbox:
        given: dict[str, Any] = {
            "name": name,
            "labels": labels,
            "os_user": "root",
            # Only the lifetime ends a sandbox. By default, Daytona stops a container after 15 idle
            # minutes, and pauses a virtual machine after 60. One that stops is deleted.
            "ttl_minutes": _minutes(_CREATE_SECONDS + lifetime),
            "auto_stop_interval": 0,
            "auto_pause_interval": 0,
            "auto_delete_interval": 0,
            "secrets": {f"BENCHFLOW_{at}": each for at, each in enumerate(secrets.values())},
            **_network_of(spec),
        }
        image = "" if spec.image in {None, "host"} else str(spec.image)
        params: daytona.CreateSandboxFromSnapshotParams | daytona.CreateSandboxFromImageParams
        if not image or self._vm or image.startswith(_SNAPSHOT):
            snapshot = image.removeprefix(_SNAPSHOT) or ("daytona-vm-small" if self._vm else None)
            params = daytona.CreateSandboxFromSnapshotParams(**given, snapshot=snapshot)
        else:  # only an image has a size to choose
            size = daytona.Resources(
                cpu=None if spec.limits.cpus is None else ceil(spec.limits.cpus),
                memory=spec.limits.memory_mb and ceil(spec.limits.memory_mb / 1024),
                disk=spec.limits.disk_mb and max(3, ceil(spec.limits.disk_mb / 1024)),
            )
            params = daytona.CreateSandboxFromImageParams(**given, image=image, resources=size)
        try:
            return await self._sdk().create(params, timeout=_CREATE_SECONDS)
        except daytona.DaytonaConflictError:  # the answer of an earlier try was lost
            sandbox = await self._sdk().get(name, _SECONDS)
            await sandbox.wait_for_sandbox_start(timeout=_CREATE_SECONDS)
            return sandbox

    def _check(self, sandbox: daytona.AsyncSandbox, spec: SandboxSpec) -> None:
        """Refuse a sandbox that lacks what was asked for."""
        problem = ""
        if sandbox.auto_destroy_at is None:
            problem = "the server does not know lifetimes"
        elif spec.network != "public" and any(
            getattr(sandbox, k) != v for k, v in _network_of(spec).items()
        ):
            problem = "the server did not close the network"
        elif self._vm and sandbox.sandbox_class != "linux-vm":
            problem = f"the snapshot {spec.image!r} is not one of a virtual machine"
        if problem:
            raise SandboxUnsupportedError(f"Daytona: {problem}")

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the sandboxes that have this label, in any state."""
        with typed_errors("list the sandboxes"):
            every = self._sdk().list(daytona.ListSandboxesQuery(labels=_MARK), _SECONDS)
            # The SDK's generator does not end well when its caller leaves it early.
            listed = [each async for each in every if each.created_at is not None]
            found = [_record(each) for each in listed]
        for each in found:
            if label in each.labels:
                yield each

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now, in whole minutes."""
        with typed_errors("extend a sandbox"):
            found = await self._sdk().get(sandbox, _SECONDS)
            await found.set_ttl(_minutes(lifetime), _SECONDS)

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id or name. Idempotent."""
        with suppress(SandboxLostError), typed_errors("find a sandbox"):
            found = await self._sdk().get(sandbox, _SECONDS)
            await DaytonaSandbox(found, Vault(self._sdk())).delete()

    async def aclose(self) -> None:
        """Close the connections of the SDK. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__()


def _network_of(spec: SandboxSpec) -> dict[str, Any]:
    """Return the network options. Served doors and the allowlist are served through the link."""
    if spec.network == "public":
        return {"network_block_all": False}
    hosts = spec.outside_hosts("egress")
    if spec.network == "model-only":
        hosts = tuple(dict.fromkeys((*hosts, *spec.outside_hosts("token"))))
    return {"domain_allow_list": ",".join(hosts)} if hosts else {"network_block_all": True}


def _record(sandbox: daytona.AsyncSandbox) -> CloudRecord:
    labels = {name: value for name, value in sandbox.labels.items() if name not in _OTHER_LABELS}
    created = datetime.fromisoformat(str(sandbox.created_at)).timestamp()
    return CloudRecord(sandbox.id, labels, created)


def _minutes(seconds: float) -> int:
    return max(1, ceil(seconds / 60))
