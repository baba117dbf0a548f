"""The socket of a job: other processes of the same user give orders through it."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from benchflow_contracts import BenchFlowError, StoreError, UsageError
from pydantic import ValidationError

from .orders import Order, Reply, order_adapter

SOCKET_FILE = "runtime/control.sock"
_MAX_BYTES = 1 << 20
_TIMEOUT_SEC = 30.0


class JobNotRunningError(UsageError):
    """No process runs the job."""

    default_hint = "`bench job resume` continues the job"


@contextmanager
def _address(directory: Path) -> Generator[str]:
    """Yield the address of the job's socket. A path may be too long for an address."""
    parent = (directory / SOCKET_FILE).parent
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{Path(SOCKET_FILE).name}"
    finally:
        os.close(descriptor)


@asynccontextmanager
async def serve_orders(
    directory: Path, receive: Callable[[Order], Awaitable[Reply]]
) -> AsyncGenerator[None]:
    """Take orders inside the block. The caller holds the lock of the job.

    Only the owner of the process, and root, can connect.

    Raises:
        StoreError: The socket cannot be made.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_SEC):
                reply = await _reply(reader, writer, receive)
                writer.write(reply.model_dump_json().encode() + b"\n")
                await writer.drain()
        writer.close()

    path = directory / SOCKET_FILE
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        with _address(directory) as address:
            listener = _listen(address)
        ours = path.lstat().st_ino
    except OSError as error:
        raise StoreError(f"cannot make {str(path)!r}: {error.strerror}") from error
    server = await asyncio.start_unix_server(answer, sock=listener, limit=_MAX_BYTES)
    try:
        yield
    finally:
        server.close()
        # A later process that took the job over has a socket of its own there.
        with suppress(FileNotFoundError):
            if path.lstat().st_ino == ours:
                path.unlink()


def _listen(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(address)
    finally:
        os.umask(before)
    return listener


async def _reply(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    receive: Callable[[Order], Awaitable[Reply]],
) -> Reply:
    peer = _peer(writer.get_extra_info("socket"))
    if peer[1] not in {os.geteuid(), 0}:
        return Reply(ok=False, message="only the owner of the job may give orders")
    try:
        line = await reader.readuntil(b"\n")
        order = order_adapter.validate_json(line)
    except asyncio.LimitOverrunError:
        return Reply(ok=False, message=f"the order is longer than {_MAX_BYTES} bytes")
    except ValidationError as error:
        return Reply(ok=False, message=f"not an order: {error.errors()[0]['msg']}")
    try:
        return await receive(order)
    except BenchFlowError as error:
        return Reply(ok=False, message=str(error), hint=error.hint)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", raw)
    return process, user


def send_order(directory: Path, order: Order, *, timeout_sec: float = _TIMEOUT_SEC) -> Reply:
    """Give an order to the process that runs the job, and return its reply.

    Raises:
        JobNotRunningError: No process runs the job.
        StoreError: The process does not answer.
    """
    with _connected(directory) as connection:
        connection.settimeout(timeout_sec)
        try:
            connection.sendall(order.model_dump_json().encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(_MAX_BYTES)
            return Reply.model_validate_json(line)
        except (OSError, ValidationError) as error:
            process = _peer(connection)[0]
            raise StoreError(
                f"process {process}, which runs job {directory.name!r}, does not answer",
                hint="`bench job kill` ends it, and a resume continues the job",
            ) from error


def running_process(directory: Path) -> int:
    """Return the id of the process that runs the job.

    Raises:
        JobNotRunningError: No process runs the job.
    """
    with _connected(directory) as connection:
        return _peer(connection)[0]


@contextmanager
def _connected(directory: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            with _address(directory) as address:
                connection.connect(address)
        except OSError as error:
            raise JobNotRunningError(f"no process runs job {directory.name!r}") from error
        yield connection
