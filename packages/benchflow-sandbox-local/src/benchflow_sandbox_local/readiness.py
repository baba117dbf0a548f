"""Wait for one descriptor on the running event loop."""

import asyncio
import select


async def readable(fd: int) -> None:
    """Return when `fd` can be read or has reached its end."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, _resolve, waiting)
    try:
        await waiting
    finally:
        loop.remove_reader(fd)


def is_readable(fd: int) -> bool:
    """Return whether `fd` can be read now or has reached its end."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


async def writable(fd: int) -> None:
    """Return when `fd` can be written or its reader is gone."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, _resolve, waiting)
    try:
        await waiting
    finally:
        loop.remove_writer(fd)


def _resolve(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
