"""The client of a broker: a `SandboxService` over HTTP. Only data crosses it."""

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
from benchflow_contracts import (
    BenchFlowError,
    CapacityError,
    Endpoint,
    ExecResult,
    HostError,
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    TransferError,
    UsageError,
)
from pydantic import BaseModel, ValidationError

from .leases import MAX_FILE_BYTES, CommandRequest, LeaseRequest, SandboxLease, SandboxState

TOKEN_VARIABLE: Final = "BENCHFLOW_BROKER_TOKEN"  # noqa: S105 - the name of a variable
_MARGIN_SEC: Final = 30.0
_START_SEC: Final = 900.0
_CHUNK: Final = 1 << 20
_ERRORS: Final[dict[str, type[BenchFlowError]]] = {
    error.__name__: error
    for error in (
        CapacityError,
        HostError,
        SandboxLimitError,
        SandboxLostError,
        SandboxTimeoutError,
        SandboxUnsupportedError,
        TransferError,
        UsageError,
    )
}


def read_token(token_file: str | None) -> str:
    """Return the token of `token_file`, its first line, or of $BENCHFLOW_BROKER_TOKEN.

    Raises:
        UsageError: Neither exists.
    """
    if token_file is None:
        if token := os.environ.get(TOKEN_VARIABLE):
            return token
        raise UsageError(
            "the broker's token is missing", hint=f"set ${TOKEN_VARIABLE}, or name a token file"
        )
    try:
        return Path(token_file).read_text().splitlines()[0].strip()
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise UsageError(f"cannot read the token of {token_file!r}: {error}") from error


class _Fault(BaseModel):
    type: str = "SandboxError"
    message: str = ""
    hint: str | None = None


class BrokerClient:
    """The sandboxes of a broker. A call that cannot connect is tried three times."""

    def __init__(
        self, url: str, token: str, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(_MARGIN_SEC, pool=None),
            transport=transport or httpx.AsyncHTTPTransport(retries=2),
            trust_env=False,
        )

    async def acquire(self, request: LeaseRequest) -> SandboxLease:
        """Start a sandbox, or return the one that the rollout has under this name."""
        limit = _MARGIN_SEC + (request.ready_timeout_sec or _START_SEC)
        return SandboxLease.model_validate_json(
            await self._send("POST", "/v1/leases", body=request, limit_sec=limit)
        )

    async def exec(self, ref: str, request: CommandRequest) -> ExecResult:
        """Run a command to its end."""
        limit = None if request.timeout_sec is None else request.timeout_sec + _MARGIN_SEC
        path = f"/v1/leases/{quote(ref, safe='')}/exec"
        return ExecResult.model_validate_json(
            await self._send("POST", path, body=request, limit_sec=limit)
        )

    async def upload(self, ref: str, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy one regular file in."""
        if not local.is_file():  # noqa: ASYNC240 - takes no time
            raise TransferError(f"{str(local)!r} is not a regular file", caused_by="operator")

        async def chunks() -> AsyncGenerator[bytes]:
            with local.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk

        params = {"path": remote, **({} if user is None else {"user": user})}
        async with self._faults():
            response = await self._http.put(
                f"/v1/leases/{quote(ref, safe='')}/file", params=params, content=chunks()
            )
            _check(response)

    async def download(
        self, ref: str, remote: str, local: Path, *, max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """Copy one regular file out. `local` appears whole, or not at all."""
        params: dict[str, Any] = {"path": remote, "max_bytes": max_bytes}
        path = f"/v1/leases/{quote(ref, safe='')}/file"
        local.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=local.parent, prefix=".benchflow-") as scratch:
            part = Path(scratch) / "file"
            async with self._faults(), self._http.stream("GET", path, params=params) as response:
                if response.is_error:
                    await response.aread()
                    _check(response)
                await _write_limited(response, part, max_bytes)
            part.replace(local)

    async def status(self, ref: str) -> SandboxState:
        """Return whether the sandbox runs a command."""
        path = f"/v1/leases/{quote(ref, safe='')}/status"
        return _Status.model_validate_json(await self._send("GET", path)).status

    async def endpoint(self, ref: str, port: int) -> Endpoint:
        """Return the address at which the broker's machine reaches the port."""
        path = f"/v1/leases/{quote(ref, safe='')}/endpoints/{port}"
        return Endpoint.model_validate_json(await self._send("GET", path))

    async def lease(self, ref: str) -> SandboxLease:
        """Renew the lease and return it."""
        path = f"/v1/leases/{quote(ref, safe='')}"
        return SandboxLease.model_validate_json(await self._send("GET", path))

    async def release(self, ref: str) -> None:
        """Delete the sandbox."""
        await self._send("DELETE", f"/v1/leases/{quote(ref, safe='')}", limit_sec=_START_SEC)

    async def release_rollout(self, rollout: str) -> None:
        """Delete all sandboxes of a rollout."""
        # A rollout's name may have a slash.
        path = f"/v1/rollouts?rollout={quote(rollout, safe='')}"
        await self._send("DELETE", path, limit_sec=_START_SEC)

    async def aclose(self) -> None:
        """Close the connections. The sandboxes stay with the broker."""
        await self._http.aclose()

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: BaseModel | None = None,
        limit_sec: float | None = _MARGIN_SEC,
    ) -> bytes:
        async with self._faults():
            response = await self._http.request(
                method,
                path,
                content=None if body is None else body.model_dump_json(),
                headers={} if body is None else {"Content-Type": "application/json"},
                timeout=httpx.Timeout(_MARGIN_SEC, read=limit_sec, pool=None),
            )
            _check(response)
            return response.content

    @asynccontextmanager
    async def _faults(self) -> AsyncGenerator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            raise HostError(
                f"the broker at {self._http.base_url} does not answer:"
                f" {type(error).__name__}: {error}",
                hint="start the broker, or correct its URL",
            ) from error
        except ValidationError as error:
            raise SandboxError(
                f"not a broker at {self._http.base_url}: unexpected response",
                hint="correct the URL of the broker",
            ) from error


class _Status(BaseModel):
    status: SandboxState


async def _write_limited(response: httpx.Response, path: Path, max_bytes: int) -> None:
    size = 0
    with path.open("wb") as file:
        async for chunk in response.aiter_bytes(_CHUNK):
            size += len(chunk)
            if size > max_bytes:
                raise TransferError(f"the file is larger than {max_bytes} bytes")
            file.write(chunk)


def _check(response: httpx.Response) -> None:
    """Raise the error of a response as the class that the broker raised."""
    if response.is_success:
        return
    try:
        fault = _Fault.model_validate_json(response.content)
    except ValidationError:
        fault = _Fault(message=f"the broker answers with status {response.status_code}")
    error = _ERRORS.get(fault.type, UsageError if response.status_code == 401 else SandboxError)
    raise error(fault.message, hint=fault.hint)
