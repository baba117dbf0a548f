"""An organization of Daytona."""

import asyncio
import secrets
import shlex
import warnings
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from math import ceil
from typing import Any

import daytona
from benchflow_contracts.errors import SandboxError, SandboxLostError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import (
    PROGRAM,
    BoxSize,
    CloudRecord,
    LineTransport,
    QueuedTransport,
    SdkSandbox,
    Transport,
    WebSocketDialer,
    open_hosts,
)
from benchflow_sandbox_remote.limited_answers import limited

from .errors import typed_errors
from .vault import Vault, secret_names

_SNAPSHOT = "snapshot://"
_MARK = {"benchflow": "sandbox"}
"""The label of every sandbox of BenchFlow: a query of Daytona needs a label with its value."""
_SECRETS = "benchflow-secrets"
"""The label of a sandbox with secrets. Its value is their key."""
_OTHER_LABELS = {*_MARK, _SECRETS, "code-toolbox-language"}
_CREATE_SECONDS = 600  # of one try, in which Daytona may pull an image
_SECONDS, _SHORT, _FORGET_SECONDS = 60, 20, 10
_MAX_LOG = 1 << 28
"""The most output of a connection, which Daytona keeps in files until the session is deleted."""
_DEAD = {"destroyed", "destroying", "stopped", "stopping", "error", "build_failed", "archived"}


class DaytonaSandbox(SdkSandbox):
    """One sandbox of Daytona."""

    typed_errors = typed_errors

    def __init__(
        self, sandbox: daytona.AsyncSandbox, vault: Vault, placeholders: Mapping[str, str]
    ) -> None:
        super().__init__(sandbox.id)
        self._sandbox, self._vault, self.placeholders = sandbox, vault, placeholders
        self._dialer = WebSocketDialer(self, self._locate, self._start_session)
        self.size = BoxSize(
            vcpus=sandbox.cpu, memory_mb=1024 * sandbox.memory, disk_mb=1024 * sandbox.disk
        )

    async def write_file(self, path: str, content: bytes) -> None:
        """Write a file inside."""
        await self._sandbox.fs.upload_files([daytona.FileUpload(content, path)], timeout=300)

    async def execute(self, argv: Sequence[str]) -> tuple[int, str]:
        """Run a command to its end. Without a timeout, Daytona would end it after 10 seconds."""
        command = shlex.join(argv)
        result = await self._sandbox.process.exec(command, cwd="/", timeout=_SECONDS)
        return result.exit_code, result.result

    async def open_link(self) -> Transport:
        """Connect to the link inside, by its port or by a session."""
        return await self._dialer.dial()

    async def _locate(self, port: int) -> tuple[str, dict[str, str]]:
        with typed_errors("find the URL of a port"):
            found = await self._sandbox.get_preview_link(port, _SECONDS)
        return found.url, {"X-Daytona-Preview-Token": found.token}

    async def _start_session(self) -> LineTransport:
        """Connect to the link by a command of a session, which carries only lines of text."""
        process, session = self._sandbox.process, f"benchflow-{secrets.token_hex(8)}"
        # Input before the start of the command is lost, so the first line says that it has started.
        request = daytona.SessionExecuteRequest(
            command=f"echo ready; {PROGRAM} dial lines", run_async=True, suppress_input_echo=True
        )
        # A toolbox that starts again has lost its sessions. `dial` asks whether the sandbox runs.
        with typed_errors("connect to the link", missing=SandboxError):
            await process.create_session(session, request_timeout=_SHORT)
            name = (await process.execute_session_command(session, request, timeout=_SHORT)).cmd_id
        transport = QueuedTransport(
            lambda put: process.get_session_command_logs_async(session, name, put, lambda _: None),
            lambda text: process.send_session_command_input(session, name, text, _SHORT),
            close=lambda: process.delete_session(session, request_timeout=5),
            most=_MAX_LOG,
        )
        return await LineTransport.begin(transport, b"ready")

    async def read_end(self) -> str | None:
        """Return the state of a sandbox that does not run any more, with its reason."""
        found = self._sandbox
        await found.refresh_data(request_timeout=_SECONDS)
        if found.spot_evicted_at:
            return f"evicted since {found.spot_evicted_at}"
        state = "" if found.state is None else found.state.value
        return f"{state}: {found.error_reason}" if state in _DEAD else None

    async def remove(self) -> None:
        """Delete the sandbox."""
        await self._sandbox.delete()

    async def clean_up(self) -> None:
        """Delete the secrets of the sandbox."""
        if (key := self._sandbox.labels.get(_SECRETS)) is not None:
            await self._vault.forget(key)


class DaytonaCloud:
    """The organization of a key. With `vm`, its sandboxes are virtual machines."""

    def __init__(self, config: Mapping[str, str], *, vm: bool) -> None:
        self._config: dict[str, Any] = {**config, "use_deprecated_polling": True}
        self._vm = vm
        self._client: daytona.AsyncDaytona | None = None

    def _sdk(self) -> daytona.AsyncDaytona:
        """Return the client, whose connections belong to the running event loop."""
        if self._client is None:
            with warnings.catch_warnings():
                # Otherwise each runner and each sandbox has one more subscription.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._client = daytona.AsyncDaytona(daytona.DaytonaConfig(**self._config))
            client: Any = self._client
            client._shared_session._ensure_session(client._api_client.rest_client)  # noqa: SLF001
            client._shared_session._adopt(limited(client._shared_session.session))  # noqa: SLF001
        return self._client

    async def connect(self) -> None:
        """Check that Daytona answers and accepts the key."""
        # The caller may use another event loop afterwards.
        async with aclosing(DaytonaCloud(self._config, vm=False)) as account:
            async for _ in account.list(""):
                break

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> DaytonaSandbox:
        """Create a sandbox with a name that belongs to `key`."""
        name, vault = f"benchflow-{key}", Vault(self._sdk())
        names = secret_names(spec, key)
        placeholders: dict[str, str] = {}
        try:
            for door in filter(lambda each: each.name in names, spec.doors):
                placeholders[door.name] = await vault.store(door, names[door.name])
            with typed_errors("create a sandbox", missing=SandboxUnsupportedError):
                sandbox = await self._create(
                    spec,
                    name=name,
                    labels={**labels, **_MARK, **({_SECRETS: key} if names else {})},
                    ttl_minutes=ceil((_CREATE_SECONDS + lifetime) / 60),
                    secrets={f"BENCHFLOW_{at}": each for at, each in enumerate(names.values())},
                )
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

    async def _create(self, spec: SandboxSpec, **given: Any) -> daytona.AsyncSandbox:  # noqa: ANN401
        # Only the lifetime ends a sandbox. By default, Daytona stops a container after 15 idle
        # minutes, and pauses a virtual machine after 60. One that stops is deleted.
        given |= {"auto_stop_interval": 0, "auto_pause_interval": 0, "auto_delete_interval": 0}
        given |= {"os_user": "root", **_network_of(spec)}
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
            sandbox = await self._sdk().get(given["name"], _SECONDS)
            await sandbox.wait_for_sandbox_start(timeout=_CREATE_SECONDS)
            return sandbox

    def _check(self, sandbox: daytona.AsyncSandbox, spec: SandboxSpec) -> None:
        """Refuse a sandbox that lacks what was asked for."""
        is_as_asked = [getattr(sandbox, key) == value for key, value in _network_of(spec).items()]
        if sandbox.auto_destroy_at is None:
            raise SandboxUnsupportedError("Daytona: the server does not know lifetimes")
        if spec.network != "public" and not all(is_as_asked):
            raise SandboxUnsupportedError("Daytona: the server did not close the network")
        if self._vm and sandbox.sandbox_class != "linux-vm":
            problem = f"the snapshot {spec.image!r} is not one of a virtual machine"
            raise SandboxUnsupportedError(f"Daytona: {problem}")

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the sandboxes that have this label, in any state."""
        with typed_errors("list the sandboxes"):
            every = self._sdk().list(daytona.ListSandboxesQuery(labels=_MARK), _SECONDS)
            # The SDK's generator does not end well when its caller leaves it early.
            found = [_record(each) async for each in every if each.created_at is not None]
        for each in found:
            if label in each.labels:
                yield each

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a sandbox live for `lifetime` seconds from now, in whole minutes."""
        with typed_errors("extend a sandbox"):
            found = await self._sdk().get(sandbox, _SECONDS)
            await found.set_ttl(max(1, ceil(lifetime / 60)), _SECONDS)

    async def delete(self, sandbox: str) -> None:
        """Delete a sandbox by its id or name. Idempotent."""
        with suppress(SandboxLostError), typed_errors("find a sandbox"):
            found = await self._sdk().get(sandbox, _SECONDS)
            await DaytonaSandbox(found, Vault(self._sdk()), {}).delete()

    async def aclose(self) -> None:
        """Close the connections of the SDK. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__()


def _network_of(spec: SandboxSpec) -> dict[str, Any]:
    """Return the network options. Served doors and the allowlist are served through the link."""
    if spec.network == "public":
        return {"network_block_all": False}
    hosts = open_hosts(spec)
    return {"domain_allow_list": ",".join(hosts)} if hosts else {"network_block_all": True}


def _record(sandbox: daytona.AsyncSandbox) -> CloudRecord:
    labels = {name: value for name, value in sandbox.labels.items() if name not in _OTHER_LABELS}
    created = datetime.fromisoformat(str(sandbox.created_at)).timestamp()
    return CloudRecord(sandbox.id, labels, created)
