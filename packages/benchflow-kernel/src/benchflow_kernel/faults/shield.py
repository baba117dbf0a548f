"""Finish work although its caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result.

    A cancellation that arrives meanwhile is raised after `work` has ended.
    `work` must be bounded by a deadline of its own.
    """
    # A TaskGroup would cancel the task; this frame owns it and returns after its end.
    return await _finished(asyncio.get_running_loop().create_task(work))


def shielded_beside(work: Coroutine[Any, Any, None], owner: AsyncExitStack) -> None:
    """Start `work` in the background, shielded; `owner` is not closed before its end."""
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
