"""The broker over HTTP: an application with a bearer token on each route."""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, Final

from benchflow_contracts import (
    BenchFlowError,
    CapacityError,
    Endpoint,
    ExecResult,
    SandboxError,
    SandboxLostError,
    TransferError,
    UsageError,
)
from benchflow_serve.problems import (
    respond,
    show_deep_body,
    show_defect,
    show_http_error,
    show_wrong_body,
)
from benchflow_serve.security import (
    PUBLIC,
    HostAllowList,
)
from benchflow_serve_client import Problem
from litestar import Litestar, Request, Response, Router, delete, get, post, put
from litestar.background_tasks import BackgroundTask
from litestar.datastructures import State
from litestar.exceptions import (
    HTTPException,
)
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import File
from pydantic import ValidationError

from .broker import SandboxBroker
from .broker_access import BrokerAccess, check_access
from .descriptor import SessionSigner
from .leases import MAX_FILE_BYTES, CommandRequest, LeaseRequest, SandboxLease

_Path = Annotated[str, QueryParameter(name="path", min_length=1, max_length=4096)]
_MAX_BODY: Final = 16 * 1024 * 1024


def create_broker_app(
    broker: SandboxBroker,
    tokens: Iterable[str],
    *,
    secret: bytes | None = None,
    allowed_hosts: Iterable[str] = (),
) -> Litestar:
    """Return the application of a broker, which runs and reaps for as long as the application does.

    Args:
        broker: The broker. The application closes it.
        tokens: The bearer tokens of the whole broker, each of at least 16 characters.
        secret: Also accept `SessionSigner(secret).sign(rollout, "broker")` as a token. Such a token
            uses the sandboxes that its rollout has, and cannot make any.
        allowed_hosts: Names in the `Host` header, besides the loopback.

    Raises:
        UsageError: `tokens` is empty, or a token or the secret is too short.
    """
    access = BrokerAccess.of(tokens, None if secret is None else SessionSigner(secret))

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncGenerator[None]:
        async with broker.running():
            yield

    return Litestar(
        route_handlers=[broker_routes("/")],
        middleware=[HostAllowList(allowed_hosts)],
        exception_handlers={Exception: show_defect},
        state=State({"broker": broker, "broker_access": access}),
        lifespan=[lifespan],
        request_max_body_size=_MAX_BODY,
        openapi_config=None,
        logging_config=None,
    )


def broker_routes(path: str) -> Router:
    """Return the routes below `path`, for an application whose state has `broker`.

    The state also has `broker_access`.
    """
    return Router(
        path=path,
        route_handlers=[
            check_health,
            acquire,
            show_lease,
            show_status,
            run_command,
            upload_file,
            download_file,
            show_endpoint,
            release,
            release_rollout,
        ],
        guards=[check_access],
        exception_handlers={
            HTTPException: show_http_error,
            BenchFlowError: _show_fault,
            ValidationError: show_wrong_body,
            RecursionError: show_deep_body,
        },
    )


@get("/v1/health", opt=PUBLIC)
async def check_health() -> dict[str, str]:
    """Return that the broker answers."""
    return {"status": "ok"}


@post("/v1/leases")
async def acquire(data: JSONBody[LeaseRequest], state: State) -> SandboxLease:
    """Start a sandbox, or return the one that the rollout has under this name."""
    return await _broker(state).acquire(data)


@get("/v1/leases/{ref:str}")
async def show_lease(ref: FromPath[str], state: State) -> SandboxLease:
    """Renew a lease and return it."""
    return await _broker(state).lease(ref)


@get("/v1/leases/{ref:str}/status")
async def show_status(ref: FromPath[str], state: State) -> dict[str, str]:
    """Return whether the sandbox runs a command."""
    return {"status": await _broker(state).status(ref)}


@post("/v1/leases/{ref:str}/exec", status_code=200)
async def run_command(
    ref: FromPath[str], data: JSONBody[CommandRequest], request: Request[Any, Any, State]
) -> ExecResult:
    """Run a command to its end. A non-zero exit code is a result.

    If the client goes away, the command is killed: it would keep the lease for ever.
    """
    # A group would wrap the error of the call.
    running = asyncio.create_task(_broker(request.app.state).exec(ref, data))  # noqa: TID251
    watching = asyncio.create_task(_wait_for_disconnect(request))  # noqa: TID251
    try:
        await asyncio.wait({running, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise SandboxLostError("the client has gone away during the call")
        return running.result()
    finally:
        for each in (running, watching):
            each.cancel()
        await asyncio.wait({running, watching})


@put("/v1/leases/{ref:str}/file", status_code=204, request_max_body_size=None)
async def upload_file(
    ref: FromPath[str],
    path: _Path,
    request: Request[Any, Any, State],
    user: FromQuery[str | None] = None,
) -> None:
    """Copy the body of the request into a file of the sandbox."""
    broker = _broker(request.app.state)
    await broker.lease(ref)
    scratch = _scratch_file()
    try:
        size = 0
        with scratch.open("wb") as file:
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_FILE_BYTES:
                    raise TransferError(f"the file is larger than {MAX_FILE_BYTES} bytes")
                file.write(chunk)
        await broker.upload(ref, scratch, path, user=user)
    finally:
        scratch.unlink(missing_ok=True)


@get("/v1/leases/{ref:str}/file")
async def download_file(
    ref: FromPath[str],
    path: _Path,
    state: State,
    max_bytes: Annotated[int, QueryParameter(ge=1, le=MAX_FILE_BYTES)] = MAX_FILE_BYTES,
) -> File:
    """Return a file of the sandbox."""
    scratch = _scratch_file()
    try:
        await _broker(state).download(ref, path, scratch, max_bytes=max_bytes)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    return File(
        path=scratch,
        media_type="application/octet-stream",
        background=BackgroundTask(scratch.unlink, missing_ok=True),
    )


@get("/v1/leases/{ref:str}/endpoints/{port:int}")
async def show_endpoint(ref: FromPath[str], port: FromPath[int], state: State) -> Endpoint:
    """Return the address of a port of the spec."""
    return await _broker(state).endpoint(ref, port)


@delete("/v1/leases/{ref:str}")
async def release(ref: FromPath[str], state: State) -> None:
    """Delete a sandbox. An unknown reference has no effect."""
    await _broker(state).release(ref)


@delete("/v1/rollouts")
async def release_rollout(rollout: FromQuery[str], state: State) -> None:
    """Delete all sandboxes of a rollout."""
    await _broker(state).release_rollout(rollout)


def _broker(state: State) -> SandboxBroker:
    broker: SandboxBroker = state["broker"]
    return broker


async def _wait_for_disconnect(request: Request[Any, Any, State]) -> None:
    # The body was read, so the next message of ASGI is the end of the connection.
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _scratch_file() -> Path:
    descriptor, name = mkstemp(prefix="benchflow-broker-")
    os.close(descriptor)
    return Path(name)


def _show_fault(_: Request[Any, Any, Any], error: BenchFlowError) -> Response[Problem]:
    """Return an error of a sandbox with its class, so that the client raises the same one."""
    known = next(
        name
        for name in (each.__name__ for each in type(error).__mro__)
        if name in {*_STATUS, "BenchFlowError"}
    )
    return respond(
        Problem(type=known, message=str(error), hint=error.hint), _STATUS.get(known, 503)
    )


_STATUS: Final = {
    CapacityError.__name__: 429,
    SandboxLostError.__name__: 404,
    UsageError.__name__: 400,
    "HostError": 503,
    "SandboxLimitError": 409,
    "SandboxTimeoutError": 408,
    "SandboxUnsupportedError": 422,
    "TransferError": 422,
    SandboxError.__name__: 409,
}
"""The status of each class of error, the most special class first."""
