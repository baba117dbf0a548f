"""Work that is finished although its caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result.

    Cancellation that arrives meanwhile is kept and raised once `work` has ended.
    `work` must be bounded by a deadline of its own.
    """
    # A TaskGroup would pass the cancellation on; this task's owner is this frame,
    # which does not return before it.
    return await _finished(asyncio.get_running_loop().create_task(work))


def shielded_beside(work: Coroutine[Any, Any, None], owner: AsyncExitStack) -> None:
    """Start `work` beside the caller; `owner` is not closed before it has ended, as `shielded`."""
    owner.push_async_callback(_finished, asyncio.get_running_loop().create_task(work))


async def _finished(task: asyncio.Task[T]) -> T:
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
