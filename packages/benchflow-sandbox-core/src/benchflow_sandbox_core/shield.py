"""Work that a cancellation does not interrupt."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end even if the caller is cancelled; then raise the cancellation."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


async def finish_or(work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[None]]) -> T:
    """Run `work` to its end; if the caller is cancelled meanwhile, undo its result."""
    made: list[T] = []

    async def take() -> None:
        made.append(await work)

    async def drop() -> None:
        for one in made:
            await undo(one)

    try:
        await finish(take())
    except asyncio.CancelledError:
        await finish(drop())
        raise
    return made[0]
