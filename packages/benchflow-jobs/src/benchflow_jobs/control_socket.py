"""The socket of a job: other processes of the same user give orders through it."""

import asyncio
import os
import select
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow_contracts import BenchFlowError, StoreError, UsageError
from pydantic import ValidationError

if TYPE_CHECKING:
    from .orders import Order, Reply

SOCKET_FILE = "runtime/control.sock"
_MAX_BYTES = 1 << 20
_TIMEOUT_SEC = 30.0
_CONNECT_SEC = 2.0
_LAST_REPLY_SEC = 0.5
"""How long the end of a job waits for orders that are still answered."""


class JobNotRunningError(UsageError):
    """No process runs the job."""

    default_hint = "`bench job resume` continues the job"


@contextmanager
def _address(directory: Path) -> Generator[str]:
    """Yield the address of the job's socket. A path may be too long for an address."""
    parent = (directory / SOCKET_FILE).parent
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(parent, flags)
    try:
        yield f"/proc/self/fd/{descriptor}/{Path(SOCKET_FILE).name}"
    finally:
        os.close(descriptor)


@asynccontextmanager
async def serve_orders(
    directory: Path, receive: "Callable[[Order], Awaitable[Reply]]"
) -> AsyncGenerator[None]:
    """Take orders inside the block. The caller holds the lock of the job.

    Only the owner of the process, and root, can connect.

    Raises:
        StoreError: The socket cannot be made.
    """
    answers: set[asyncio.Task[Any]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        answers.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(_TIMEOUT_SEC):
                    reply = await _reply(reader, writer, receive)
                    writer.write(reply.model_dump_json().encode() + b"\n")
                    writer.close()
                    await writer.wait_closed()
        finally:
            await _abort(writer)
            answers.discard(task)

    path = directory / SOCKET_FILE
    try:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
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
        with suppress(OSError):
            if path.lstat().st_ino == ours:
                path.unlink()
        await _end(answers)


async def _end(answers: set[asyncio.Task[Any]]) -> None:
    """Wait shortly for the replies, then cancel those that are left."""
    if answers:
        _, late = await asyncio.wait(answers, timeout=_LAST_REPLY_SEC)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Return when the connection is closed. What was not sent is lost."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


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
    receive: "Callable[[Order], Awaitable[Reply]]",
) -> "Reply":
    from .orders import Reply, order_adapter  # noqa: PLC0415 - most jobs get no order

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
    if _has_left(writer.get_extra_info("socket")):
        # This process was stopped meanwhile, and the client has reported that nothing was done.
        return Reply(ok=False, message="nobody waits for the reply")
    try:
        return await receive(order)
    except BenchFlowError as error:
        return Reply(ok=False, message=str(error), hint=error.hint)
    except Exception as error:  # noqa: BLE001 - an order never ends the job, and has an answer
        return Reply(ok=False, message=f"the order failed: {type(error).__name__}: {error}")


def _has_left(connection: socket.socket) -> bool:
    """Return whether the other end has closed the connection."""
    poll = select.poll()
    poll.register(connection.fileno(), 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    process, user, _ = struct.unpack("3i", raw)
    return process, user


def send_order(directory: Path, order: "Order", *, timeout_sec: float = _TIMEOUT_SEC) -> "Reply":
    """Give an order to the process that runs the job, and return its reply.

    Raises:
        JobNotRunningError: No process runs the job.
        StoreError: The process does not answer.
    """
    from .orders import Reply  # noqa: PLC0415 - a look at a job gives no order

    with _connected(directory) as connection:
        connection.settimeout(timeout_sec)
        try:
            connection.sendall(order.model_dump_json().encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(_MAX_BYTES)
            if not line:
                raise JobNotRunningError(f"job {directory.name!r} ended before it answered")
            return Reply.model_validate_json(line)
        except (OSError, ValidationError) as error:
            raise _no_answer(directory, f"process {_peer(connection)[0]}") from error


def _no_answer(directory: Path, process: str) -> StoreError:
    return StoreError(
        f"{process}, which runs job {directory.name!r}, does not answer",
        hint="`bench job kill` ends it, and a resume continues the job",
    )


def running_process(directory: Path) -> int:
    """Return the id of the process that runs the job.

    Raises:
        JobNotRunningError: No process runs the job.
        UsageError: The process belongs to another user.
        StoreError: The process does not answer.
    """
    with _connected(directory) as connection:
        return _peer(connection)[0]


@contextmanager
def _connected(directory: Path) -> Generator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_CONNECT_SEC)
        try:
            with _address(directory) as address:
                # A link could lead to the socket of another program, which `kill` would end.
                if not stat.S_ISSOCK(os.lstat(address).st_mode):
                    raise ConnectionRefusedError
                connection.connect(address)
        except PermissionError as error:
            raise UsageError(
                f"job {directory.name!r} belongs to another user",
                hint="only the owner of a job reads its state and gives orders",
            ) from error
        except (BlockingIOError, TimeoutError) as error:
            raise _no_answer(directory, "the process") from error
        except OSError as error:
            raise JobNotRunningError(f"no process runs job {directory.name!r}") from error
        yield connection
