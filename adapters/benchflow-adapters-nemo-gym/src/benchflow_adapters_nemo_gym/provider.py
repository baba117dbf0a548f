"""The entry point `benchflow` of NeMo Gym's group `nemo_gym.sandbox_providers`.

Source of the format: nemo-gym 0.4.0, `SandboxProvider` of `nemo_gym.sandbox.providers.base`, and
`ConnectableProvider` and `SupportsSandboxEndpoint` of its main branch of August 2026.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from benchflow_contracts import (
    BenchFlowError,
    ExecResult,
    SandboxError,
    SandboxProviderFactory,
    SandboxTimeoutError,
    UsageError,
)
from benchflow_kernel import Registry, load_path

from .broker import SandboxBroker
from .broker_client import BrokerClient, read_token
from .leases import CommandRequest, SandboxService
from .nemo_spec import NemoSandboxSpec, SandboxDefaults, lease_request

PROVIDER_NAME: Final = "benchflow"
_FAILED: Final = 125
"""The return code when no process ran, as of NeMo Gym's own providers."""
_REAP_SEC: Final = 5.0


class BenchFlowProvider:
    """A `SandboxProvider` of NeMo Gym.

    Name it in a configuration:

        sandbox:
          benchflow:
            sandbox: local

    or, with a broker that other processes use as well:

        sandbox:
          benchflow:
            broker: http://127.0.0.1:8790

    NeMo Gym closes a provider with each sandbox, also one that several sandboxes share. So `aclose`
    frees nothing while a sandbox is open; the `close` of the last one does.
    """

    name = PROVIDER_NAME

    def __init__(
        self,
        *,
        sandbox: str = "local",
        broker: str | None = None,
        token_file: str | None = None,
        allow_unisolated: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare the provider, which starts nothing.

        Args:
            sandbox: A sandbox provider of BenchFlow, as a registered name or `module:attr`.
            broker: The URL of a broker, which then has the sandboxes instead of this process.
            token_file: The file of the broker's token (default: $BENCHFLOW_BROKER_TOKEN). It is
                read when it is needed: a sandbox that another component lends has a token with it.
            allow_unisolated: Whether plain processes of this machine are accepted.
            defaults: Fields of `SandboxDefaults`.

        Raises:
            UsageError: A setting is wrong, or the token is missing.
        """
        self._defaults = SandboxDefaults.model_validate(dict(defaults or {}))
        self._sandbox = sandbox
        self._broker = broker
        self._token_file = token_file
        self._allow_unisolated = allow_unisolated
        self._service: SandboxService | None = None
        self._borrowed: dict[str, BrokerClient] = {}
        self._reaper: asyncio.Task[None] | None = None
        self._open: set[str] = set()

    async def create(self, spec: NemoSandboxSpec) -> Any:  # noqa: ANN401 - a class of nemo-gym
        """Return a `SandboxHandle` of a sandbox that runs commands.

        `ttl_s` ends the sandbox. `metadata` becomes the labels of its identity. With a `rollout_id`
        in it and a `name` in `provider_options`, the same spec gives the same sandbox again.

        Raises:
            SandboxCreateError: The spec is not supported, or the sandbox did not start.
        """
        base = import_module("nemo_gym.sandbox.providers.base")
        try:
            request = lease_request(spec, self._defaults, now=time.time())
            lease = await self._started().acquire(request)
        except (BenchFlowError, ValueError) as error:
            hint = getattr(error, "hint", None)
            message = f"{error} (hint: {hint})" if hint else str(error)
            raise base.SandboxCreateError(message) from error
        self._open.add(lease.ref)
        return base.SandboxHandle(
            sandbox_id=lease.sandbox, provider_name=self.name, raw={"ref": lease.ref}
        )

    async def exec(
        self,
        handle: Any,  # noqa: ANN401
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> Any:  # noqa: ANN401
        """Run a command by the sandbox's shell; return a `SandboxExecResult`.

        After `timeout_s` its processes are killed, and `error_type` is `timeout`. A failure of the
        sandbox is `error_type` `sandbox`. Both have the return code 125. Dropped output is named at
        the end of its stream.
        """
        request = CommandRequest(
            cmd=command,
            cwd=cwd,
            env=env or {},
            timeout_sec=timeout_s,
            user=None if user is None else str(user),
        )
        result_class = import_module("nemo_gym.sandbox.providers.base").SandboxExecResult
        try:
            result = await self._service_of(handle).exec(_ref(handle), request)
        except SandboxError as error:
            kind = "timeout" if isinstance(error, SandboxTimeoutError) else "sandbox"
            return result_class(
                stdout=None, stderr=str(error), return_code=_FAILED, error_type=kind
            )
        stdout, stderr = _streams(result)
        return result_class(stdout=stdout, stderr=stderr, return_code=result.exit_code)

    async def upload_file(self, handle: Any, source_path: Path, target_path: str) -> None:  # noqa: ANN401
        """Copy one regular file in, owned by the sandbox's user. Parents are created.

        Raises:
            TransferError: The file cannot be copied.
        """
        await self._service_of(handle).upload(_ref(handle), Path(source_path), target_path)

    async def download_file(self, handle: Any, source_path: str, target_path: Path) -> None:  # noqa: ANN401
        """Copy one regular file out. Links are refused.

        Raises:
            TransferError: The file cannot be copied. An existing target is not changed.
        """
        await self._service_of(handle).download(_ref(handle), source_path, Path(target_path))

    async def status(self, handle: Any) -> Any:  # noqa: ANN401
        """Return the `SandboxStatus`, from a command that runs inside."""
        status = import_module("nemo_gym.sandbox.providers.base").SandboxStatus
        return status(await self._service_of(handle).status(_ref(handle)))

    async def endpoint(self, handle: Any, port: int) -> Any:  # noqa: ANN401
        """Return the `SandboxEndpoint` of a port that the spec names. Needs a later nemo-gym.

        Raises:
            UsageError: This nemo-gym has no endpoints.
            SandboxUnsupportedError: The port is not one of the spec.
        """
        base = import_module("nemo_gym.sandbox.providers.base")
        if not hasattr(base, "SandboxEndpoint"):
            raise UsageError("this nemo-gym has no endpoints", hint="install a later one")
        found = await self._service_of(handle).endpoint(_ref(handle), port)
        return base.SandboxEndpoint(endpoint=found.url, headers=dict(found.headers))

    async def serialize_handle(self, handle: Any, *, scope: str | None = None) -> dict[str, Any]:  # noqa: ANN401
        """Return a descriptor for `connect` in another process. The sandbox then has two users.

        The descriptor has no token: the other process has its own, unless this handle has one that
        is for its rollout alone.

        Raises:
            UsageError: The sandboxes are of this process.
        """
        del scope
        if self._broker is None:
            raise UsageError(
                "the sandbox belongs to this process, so another one cannot use it",
                hint="start a broker, and name it with `broker` in the provider's configuration",
            )
        return {"provider": self.name, "sandbox_id": handle.sandbox_id, **handle.raw}

    async def connect(self, descriptor: Mapping[str, Any]) -> Any:  # noqa: ANN401
        """Return a handle of a sandbox that another process acquired, and renew its lease.

        Raises:
            UsageError: The descriptor is not of this provider.
            SandboxLostError: The sandbox is gone.
        """
        ref, token = descriptor.get("ref"), descriptor.get("token")
        if descriptor.get("provider") != self.name or not isinstance(ref, str):
            raise UsageError(f"the descriptor is not of the provider {self.name!r}")
        raw = {"ref": ref} | ({"token": token} if isinstance(token, str) else {})
        base = import_module("nemo_gym.sandbox.providers.base")
        handle = base.SandboxHandle(sandbox_id="", provider_name=self.name, raw=raw)
        lease = await self._service_of(handle).lease(ref)
        handle.sandbox_id = lease.sandbox
        return handle

    async def close(self, handle: Any) -> None:  # noqa: ANN401
        """Delete the sandbox. Idempotent."""
        ref = _ref(handle)
        try:
            await self._service_of(handle).release(ref)
        finally:
            self._open.discard(ref)
            if not self._open:
                await self._stop()

    async def aclose(self) -> None:
        """Free what the provider holds, unless a sandbox of its own is open."""
        if not self._open:
            await self._stop()

    def _started(self) -> SandboxService:
        if self._service is not None:
            return self._service
        if self._broker is not None:
            self._service = BrokerClient(self._broker, read_token(self._token_file))
        else:
            broker = SandboxBroker(self._make_provider(), idle_sec=float("inf"))
            self._service = broker
            self._reaper = asyncio.get_running_loop().create_task(_reap_often(broker))
        return self._service

    def _service_of(self, handle: Any) -> SandboxService:  # noqa: ANN401
        """Return the service of a handle: of this provider, or by the token of the handle."""
        _ref(handle)
        token = handle.raw.get("token")
        if token is None or self._broker is None:
            return self._started()
        # The URL is of the configuration: a descriptor comes from another server.
        if token not in self._borrowed:
            self._borrowed[token] = BrokerClient(self._broker, token)
        return self._borrowed[token]

    def _make_provider(self) -> Any:  # noqa: ANN401
        found = (
            load_path(self._sandbox)
            if ":" in self._sandbox
            else Registry().resolve("benchflow.sandboxes", self._sandbox)
        )
        return cast("SandboxProviderFactory", found)(allow_unisolated=self._allow_unisolated)

    async def _stop(self) -> None:
        service, self._service = self._service, None
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.cancel()
            with suppress(asyncio.CancelledError):
                await reaper
        borrowed, self._borrowed = self._borrowed, {}
        for each in (*borrowed.values(), *([] if service is None else [service])):
            await each.aclose()


async def _reap_often(broker: SandboxBroker) -> None:
    while True:
        await asyncio.sleep(_REAP_SEC)
        await broker.reap()


def _ref(handle: Any) -> str:  # noqa: ANN401
    if handle.provider_name != PROVIDER_NAME:
        raise UsageError(f"sandbox {handle.sandbox_id!r} is not of the provider {PROVIDER_NAME!r}")
    return str(handle.raw["ref"])


def _streams(result: ExecResult) -> tuple[str, str]:
    return (
        _with_note(result.stdout, result.stdout_dropped),
        _with_note(result.stderr, result.stderr_dropped),
    )


def _with_note(text: str, dropped: int) -> str:
    return f"{text}\n[{dropped} bytes of output were dropped]\n" if dropped else text
