"""Sandboxes of Runloop, an example. This code was never run on Runloop."""

import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import Literal, Unpack

from benchflow_contracts.errors import (
    HostError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
)
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote import (
    LINK_CAPABILITIES,
    PROGRAM,
    CloudRecord,
    LineTransport,
    QueuedTransport,
    RemoteOptions,
    RemoteProvider,
    Transport,
    check_exit,
    convert_errors,
    error_of_status,
)
from runloop_api_client import APIConnectionError, APIStatusError, AsyncRunloop, RunloopError
from runloop_api_client.lib.polling import PollingTimeout

_State = Literal["running", "initializing", "provisioning", "queued"]
_ALIVE: tuple[_State, ...] = ("running", "initializing", "provisioning", "queued")
_DEAD = {"shutdown", "failure", "suspended", "suspending"}


def _convert(
    doing: str, error: Exception, *, missing: type[SandboxError] = SandboxLostError
) -> SandboxError | None:
    message = f"{doing}{error}"
    if isinstance(error, APIStatusError):
        return error_of_status(
            message,
            error.status_code,
            error.response.headers,
            login="set RUNLOOP_API_KEY to a valid key",
            remedy="name a blueprint of your account",
            missing=missing,
        )
    if isinstance(error, APIConnectionError | PollingTimeout):
        return HostError(message, hint="try again later")
    return SandboxError(message) if isinstance(error, RunloopError) else None


typed_errors = partial(convert_errors, "Runloop", convert=_convert)


class RunloopSandbox:
    """One devbox. Its commands run as root."""

    def __init__(self, client: AsyncRunloop, identity: str) -> None:
        self._client = client
        self.id = identity

    async def put(self, path: str, content: bytes, mode: int) -> None:
        """Write a file: the API uploads into the home directory."""
        name = "benchflow-upload"
        with typed_errors(f"write {path}"):
            await self._client.devboxes.upload_file(self.id, path=name, file=(name, content))
        target = shlex.quote(path)
        move = f'mkdir -p "$(dirname {target})" && install -m {mode:o} ~/{name} {target}'
        await self.run(["sh", "-c", f"{move} && rm ~/{name}"])

    async def run(self, argv: Sequence[str]) -> None:
        """Run a command to its end."""
        command = shlex.join(argv)
        with typed_errors(f"run {command[:80]!r}"):
            result = await self._client.devboxes.execute_and_await_completion(
                self.id, command=command
            )
        output = f"{result.stdout or ''}{result.stderr or ''}"
        check_exit(command, -1 if result.exit_status is None else result.exit_status, output)

    async def dial(self) -> Transport:
        """Connect to the link by the text of one execution."""
        with typed_errors("connect to the link"):
            if (state := (await self._client.devboxes.retrieve(self.id)).status) in _DEAD:
                raise SandboxLostError(f"Runloop: the devbox is in state {state}")
            execution = await self._client.devboxes.execute_async(
                self.id, command=f"echo ready; exec {PROGRAM} dial lines", attach_stdin=True
            )
        name, executions = execution.execution_id, self._client.devboxes.executions

        async def receive(put: Callable[[str], Awaitable[None]]) -> None:
            last = -1
            async for chunk in await executions.stream_stdout_updates(name, devbox_id=self.id):
                if chunk.offset is not None and chunk.offset <= last:
                    return  # the SDK has connected again, and repeats output
                last = last if chunk.offset is None else chunk.offset
                await put(chunk.output)

        async def send(text: str) -> None:
            await executions.send_std_in(name, devbox_id=self.id, text=text)

        async def close() -> None:
            await executions.kill(name, devbox_id=self.id, kill_process_group=True)

        return await LineTransport.begin(QueuedTransport(receive, send, close=close), b"ready")

    async def delete(self) -> None:
        """Delete the devbox. Idempotent."""
        try:
            with typed_errors("delete a devbox"):
                await self._client.devboxes.shutdown(self.id)
        except SandboxLostError:
            return


class RunloopCloud:
    """The account of a key. Without a `policy` that blocks the network, only `public` works."""

    def __init__(self, key: str | None, url: str | None, policy: str | None) -> None:
        self._key, self._url, self._policy = key, url, policy
        self._made: AsyncRunloop | None = None

    @property
    def _client(self) -> AsyncRunloop:
        if self._made is None:  # its connections belong to the running event loop
            with typed_errors("start (is RUNLOOP_API_KEY set?)"):
                self._made = AsyncRunloop(bearer_token=self._key, base_url=self._url, max_retries=1)
        return self._made

    async def create(
        self, spec: SandboxSpec, *, key: str, labels: Mapping[str, str], lifetime: float
    ) -> RunloopSandbox:
        """Create a devbox; a second call with the same `key` returns the first devbox."""
        convert = partial(_convert, missing=SandboxUnsupportedError)
        with typed_errors("create a devbox", convert=convert):
            devbox = await self._client.devboxes.create_and_await_running(
                name=f"benchflow-{key}",
                blueprint_name=None if spec.image in {None, "host"} else spec.image,
                metadata=dict(labels),
                launch_parameters={
                    "user_parameters": {"username": "root", "uid": 0},
                    # A heartbeat resets the idle time, so a runner that was killed leaves nothing.
                    "lifecycle": {
                        "after_idle": {"idle_time_seconds": ceil(lifetime), "on_idle": "shutdown"}
                    },
                    "network_policy_id": None if spec.network == "public" else self._policy,
                },
                idempotency_key=key,
            )
        return RunloopSandbox(self._client, devbox.id)

    async def list(self, label: str) -> AsyncIterator[CloudRecord]:
        """Yield the devboxes that have this label and have not ended."""
        for state in _ALIVE:
            with typed_errors("list the devboxes"):
                found = [each async for each in self._client.devboxes.list(status=state)]
            for each in found:
                if label in each.metadata:
                    yield CloudRecord(each.id, each.metadata, each.create_time_ms / 1000)

    async def extend(self, sandbox: str, lifetime: float) -> None:
        """Let a devbox live for its lifetime from now."""
        del lifetime  # that of its creation
        with typed_errors("extend a devbox"):
            await self._client.devboxes.keep_alive(sandbox)

    async def delete(self, sandbox: str) -> None:
        """Delete a devbox. Idempotent."""
        await RunloopSandbox(self._client, sandbox).delete()

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        client, self._made = self._made, None
        if client is not None:
            await client.close()


class RunloopProvider(RemoteProvider):
    """Devboxes of Runloop. The image of a spec is the name of a blueprint.

    `policy` is the id of a network policy of the account that allows nothing. The key and the
    policy are also `$RUNLOOP_API_KEY` and `$RUNLOOP_NETWORK_POLICY`.
    """

    def __init__(
        self,
        *,
        api_key: str | None = None,
        api_url: str | None = None,
        policy: str | None = None,
        **options: Unpack[RemoteOptions],
    ) -> None:
        policy = policy or os.environ.get("RUNLOOP_NETWORK_POLICY")
        offered = LINK_CAPABILITIES.network_modes if policy else frozenset({"public"})
        notes = {
            **LINK_CAPABILITIES.notes,
            "network_modes": "set RUNLOOP_NETWORK_POLICY to a policy that allows nothing",
            "snapshot_levels": "snapshots of disks are not used here; repeat the rollout",
            "builds": "build a blueprint with Runloop's tools; the image is its name",
            "resource_limits": "choose the size in the blueprint",
        }
        capabilities = LINK_CAPABILITIES.model_copy(
            update={"isolation": "vm", "network_modes": offered, "notes": notes}
        )
        cloud = RunloopCloud(api_key, api_url, policy)
        super().__init__("runloop", cloud, capabilities, **options)
