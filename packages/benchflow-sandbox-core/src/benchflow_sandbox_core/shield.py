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
    results: list[T] = []

    async def run() -> None:
        results.append(await work)

    async def undo_all() -> None:
        for result in results:
            await undo(result)

    try:
        await finish(run())
    except asyncio.CancelledError:
        await finish(undo_all())
        raise
    return results[0]
